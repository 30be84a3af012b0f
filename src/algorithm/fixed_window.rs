//! `fixed_window`: a counter for each of a series of aligned windows.
//!
//! With `align: epoch` (the default) windows are counted from the clock's epoch: window ⌊now/window⌋. With `align:
//! calendar` they are the days (`window: day` or `1d`), weeks from Monday on (`week` or `7d`) or months (`month`) of
//! the time zone `timezone` (UTC if there is none), and a day has 23 or 25 hours where the clocks change; `timezone:
//! customer` is each customer's own zone, and UTC for customers without one. A request is denied iff used + cost >
//! limit. The arithmetic is that of [`Counter`]. State: 16 bytes.

use crate::algorithm::calendar::{Calendar, Unit};
use crate::algorithm::counter::{Counter, Window};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow;

const EPOCH: &str = "epoch";
const CALENDAR: &str = "calendar";

impl FixedWindow {
    fn window(arguments: &Arguments) -> Result<Window, InvalidParameter> {
        if arguments.choice("align") == Some(CALENDAR) {
            let zone = arguments.time_zone("timezone").unwrap_or(jiff::tz::TimeZone::UTC);
            let of_customer = arguments.is_customers_zone("timezone");
            return Ok(Window::Calendar(Calendar { unit: calendar_unit(arguments)?, zone, of_customer }));
        }
        if arguments.has("timezone") {
            return Err(InvalidParameter::new(
                "timezone",
                "only says something with `align: calendar`; add that or leave it out",
            ));
        }
        if let Some(word) = arguments.choice("window") {
            let problem = format!("`{word}` needs `align: calendar`; add that or write a duration like `1d`");
            return Err(InvalidParameter::new("window", problem));
        }
        Ok(Window::FromEpoch(arguments.duration("window")?))
    }
}

fn calendar_unit(arguments: &Arguments) -> Result<Unit, InvalidParameter> {
    let unit = match arguments.choice("window") {
        Some(word) => Unit::ALL.into_iter().find(|unit| unit.as_str() == word),
        None => {
            let length = arguments.duration("window")?;
            [Unit::Day, Unit::Week].into_iter().find(|unit| unit.usual_length() == length)
        }
    };
    unit.ok_or_else(|| InvalidParameter::new("window", "must be `day`, `week` or `month` with `align: calendar`"))
}

impl Algorithm for FixedWindow {
    const NAME: &'static str = "fixed_window";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::tokens("limit"),
        Parameter::required(
            "window",
            ParameterKind::DurationOr(&[Unit::Day.as_str(), Unit::Week.as_str(), Unit::Month.as_str()]),
        )
        .at_least(1),
        Parameter::optional("align", ParameterKind::Choice(&[EPOCH, CALENDAR])),
        Parameter::optional("timezone", ParameterKind::TimeZone),
    ];

    type Core = Counter;

    fn from_arguments(arguments: &Arguments) -> Result<Counter, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        Ok(Counter { limit, window: Self::window(arguments)? })
    }

    fn arguments(rule: &Counter) -> Arguments {
        let mut arguments: Arguments = [("limit", Value::Whole(rule.limit))].into();
        match &rule.window {
            Window::FromFirst(length) | Window::FromEpoch(length) => arguments.set("window", Value::Duration(*length)),
            Window::Calendar(Calendar { unit, zone, of_customer }) => {
                let zone = if *of_customer { Value::CustomersTimeZone } else { Value::TimeZone(zone.clone()) };
                arguments.set("window", Value::Choice(unit.as_str()));
                arguments.set("align", Value::Choice(CALENDAR));
                arguments.set("timezone", zone);
            }
        }
        arguments
    }

    fn describe(rule: &Counter) -> String {
        format!("{} {}", rule.limit, rule.window.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::Nanos;

    fn build(settings: &[(&'static str, Value)]) -> Result<Counter, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(2));
        for (name, value) in settings {
            arguments.set(name, value.clone());
        }
        FixedWindow::build(&arguments)
    }

    const fn window(nanos: u64) -> (&'static str, Value) {
        ("window", Value::Duration(Nanos::new(nanos)))
    }

    const DAYS: u64 = 86_400_000_000_000;

    #[test]
    fn a_window_is_over_at_its_end() {
        let rule = build(&[window(100)]).unwrap();
        assert_eq!(FixedWindow::describe(&rule), "2 in each 100ns, counted from the epoch");
        let (_, state) = rule.decide(None, 2, Nanos::new(150));
        assert_eq!(rule.decide(state, 1, Nanos::new(199)), (Decision::later(Nanos::new(1)), state));
        assert_eq!(rule.decide(state, 1, Nanos::new(200)).0, Decision::ADMIT);
        assert_eq!(rule.decide(state, 3, Nanos::new(200)).0, Decision::never(2));
    }

    #[test]
    fn calendar_windows_are_named_or_as_long_as_a_day_or_a_week() {
        let calendar = ("align", Value::Choice(CALENDAR));
        let zone = ("timezone", Value::TimeZone(jiff::tz::TimeZone::get("Europe/Berlin").unwrap()));
        let words = |settings: &[_]| FixedWindow::describe(&build(settings).unwrap());
        let month = ("window", Value::Choice("month"));
        assert_eq!(words(&[month, calendar.clone(), zone]), "2 in each calendar month (Europe/Berlin)");
        assert_eq!(words(&[window(DAYS), calendar.clone()]), "2 in each calendar day (UTC)");
        assert_eq!(words(&[window(7 * DAYS), calendar.clone()]), "2 in each calendar week (UTC)");
        let customers = ("timezone", Value::CustomersTimeZone);
        let of_customer = "2 in each calendar month (the customer's time zone, UTC without one)";
        assert_eq!(words(&[("window", Value::Choice("month")), calendar.clone(), customers]), of_customer);
        let error = build(&[window(30 * DAYS), calendar]).unwrap_err();
        assert_eq!(error.to_string(), "`window` must be `day`, `week` or `month` with `align: calendar`");
    }

    #[test]
    fn settings_of_a_calendar_are_refused_without_one() {
        let zone = ("timezone", Value::TimeZone(jiff::tz::TimeZone::UTC));
        assert_eq!(build(&[window(100), zone]).unwrap_err().parameter, "timezone");
        let error = build(&[("window", Value::Choice("day")), ("align", Value::Choice(EPOCH))]).unwrap_err();
        let needs = "`window` `day` needs `align: calendar`; add that or write a duration like `1d`";
        assert_eq!(error.to_string(), needs);
    }
}
