//! The parameters of algorithms: read according to their kinds, overlaid for plans, and built into rules.

use crate::algorithm::{AlgorithmName, Arguments, MAX_WAIT, Parameter, ParameterKind, Rule, Value};
use crate::config::read::{Field, Section};
use crate::config::values::A_DURATION;
use crate::config::{scalar, words};

/// The parameters that one mapping sets: a limit's own, or those under a plan.
pub(super) struct Parameters<'a> {
    pub(super) arguments: Arguments,
    /// The field of each parameter.
    fields: Vec<(&'static str, Field<'a>)>,
    /// The parameters that are there but could not be read.
    broken: Vec<&'static str>,
}

impl<'a> Parameters<'a> {
    /// Reads the parameters of `algorithm` that `section` sets.
    pub(super) fn read(section: &Section<'a>, algorithm: AlgorithmName) -> Self {
        let mut parameters = Self { arguments: Arguments::default(), fields: Vec::new(), broken: Vec::new() };
        for parameter in algorithm.parameters() {
            if let Some(field) = section.get(parameter.name) {
                let value = read_value(&field, parameter).and_then(|value| match parameter.check(&value) {
                    Ok(()) => Some(value),
                    Err(invalid) => field.fail(field.error(invalid.problem)),
                });
                parameters.take(parameter.name, field, value);
            } else if section.is_misspelt(parameter.name) {
                parameters.broken.push(parameter.name);
            }
        }
        parameters
    }

    /// Adds `max_wait`, which stands under `over_limit` but is a parameter of the algorithm.
    pub(super) fn take_max_wait(&mut self, field: Field<'a>) {
        let value = field.duration().map(Value::Duration);
        self.take(MAX_WAIT, field, value);
    }

    /// Parameters with checked values, whose fields are not known.
    pub(super) fn known(arguments: Arguments) -> Self {
        Self { arguments, fields: Vec::new(), broken: Vec::new() }
    }

    fn take(&mut self, name: &'static str, field: Field<'a>, value: Option<Value>) {
        match value {
            Some(value) => self.arguments.set(name, value),
            None => self.broken.push(name),
        }
        self.fields.push((name, field));
    }

    fn field(&self, name: &str) -> Option<&Field<'a>> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, field)| field)
    }

    /// Whether the parameter is there, valid or not, or a misspelt name probably means it.
    fn attempts(&self, name: &str) -> bool {
        self.arguments.has(name) || self.field(name).is_some() || self.broken.contains(&name)
    }
}

fn read_value(field: &Field<'_>, parameter: &Parameter) -> Option<Value> {
    match parameter.kind {
        ParameterKind::Rate => {
            field.parsed("a number of tokens per time, like `100/s` or `5000/h`", scalar::rate).map(Value::Rate)
        }
        ParameterKind::Duration => field.parsed(A_DURATION, scalar::duration).map(Value::Duration),
        ParameterKind::Whole => field.whole().map(Value::Whole),
        ParameterKind::Decimal => field.parsed("a number, like `5` or `5.5`", scalar::decimal).map(Value::Decimal),
        ParameterKind::Flag => field.flag().map(Value::Flag),
        ParameterKind::Choice(words) => {
            let words: Vec<(&'static str, &'static str)> = words.iter().map(|word| (*word, *word)).collect();
            field.choice(&words).map(Value::Choice)
        }
        ParameterKind::DurationOr(words) => {
            let expected = format!("{A_DURATION}, or {}", words::alternatives(words.iter().copied()));
            field.parsed(&expected, |text| match words.iter().find(|word| **word == text) {
                Some(word) => Ok(Value::Choice(word)),
                None => scalar::duration(text).map(Value::Duration),
            })
        }
        ParameterKind::TimeZone => {
            const EXPECTED: &str =
                "the name of a time zone, like `Europe/Berlin`, or `customer` for each customer's own";
            field.parsed(EXPECTED, |text| match text {
                "customer" => Ok(Value::CustomersTimeZone),
                name => scalar::time_zone(name).map(Value::TimeZone),
            })
        }
    }
}

/// The parameters of one plan, or of requests without a plan.
pub(super) struct Overlay<'p, 'a> {
    pub(super) algorithm: AlgorithmName,
    pub(super) base: &'p Parameters<'a>,
    /// The plan's name and the parameters that it sets itself.
    pub(super) plan: Option<(&'p str, &'p Parameters<'a>)>,
}

impl Overlay<'_, '_> {
    /// The plan's arguments on top of the limit's.
    pub(super) fn arguments(&self) -> Arguments {
        match self.plan {
            Some((_, plan)) => self.base.arguments.overlaid(&plan.arguments),
            None => self.base.arguments.clone(),
        }
    }

    /// The required parameters that are neither set nor broken.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        let is_set = |name: &str| self.base.attempts(name) || self.plan.is_some_and(|(_, plan)| plan.attempts(name));
        let required = self.algorithm.parameters().iter().filter(|parameter| parameter.required);
        required.map(|parameter| parameter.name).filter(|name| !is_set(name)).collect()
    }

    /// Whether a parameter that applies could not be read; it already has a finding.
    pub(super) fn is_broken(&self) -> bool {
        let plan = self.plan.map(|(_, plan)| plan);
        let replaced = |name: &str| plan.is_some_and(|plan| plan.field(name).is_some());
        plan.is_some_and(|plan| !plan.broken.is_empty()) || self.base.broken.iter().any(|name| !replaced(name))
    }

    /// Builds the rule. A bad value is reported at its own field, otherwise at `named`, which is the plan or the limit.
    pub(super) fn build(&self, named: &Field<'_>) -> Option<Rule> {
        let missing = self.missing();
        if !missing.is_empty() {
            let are = if missing.len() == 1 { "is" } else { "are" };
            let message = format!("{} {are} missing", words::all_of(missing));
            return named.fail(named.key_error(message).expected(self.takes()));
        }
        if self.is_broken() {
            return None;
        }
        let invalid = match self.algorithm.build(&self.arguments()) {
            Ok(rule) => return Some(rule.canonical()),
            Err(invalid) => invalid,
        };
        if let Some(field) = self.plan.and_then(|(_, plan)| plan.field(invalid.parameter)) {
            return field.fail(field.error(invalid.problem));
        }
        if let Some(field) = self.base.field(invalid.parameter) {
            let hint = self.plan.map(|(name, _)| format!("this concerns the plan `{name}`"));
            return field.fail(field.error(invalid.problem).hint(hint));
        }
        named.fail(named.key_error(format!("`{}` {}", invalid.parameter, invalid.problem)))
    }

    /// The names of the algorithm's parameters, for a message.
    pub(super) fn takes(&self) -> String {
        takes(self.algorithm)
    }
}

/// The names of the algorithm's parameters, for a message.
pub(super) fn takes(algorithm: AlgorithmName) -> String {
    let names = |required: bool| {
        algorithm
            .parameters()
            .iter()
            .filter(move |parameter| parameter.required == required)
            .map(|parameter| parameter.name)
    };
    let required = format!("{} takes {}", algorithm.as_str(), words::all_of(names(true)));
    match names(false).next() {
        Some(_) => format!("{required}, and perhaps {}", words::alternatives(names(false))),
        None => required,
    }
}
