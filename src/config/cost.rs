//! `cost` and `charge` of a limit: the cost of a request, and when the gateway charges it.

use crate::algorithm::Rule;
use crate::config::prices::{self, PriceTable};
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::{CHARGE, COST_PART, COST_RULE, GRAPHQL, RESERVE};
use crate::config::terms::CostBounds;
use crate::config::values::{A_FIELD_PATH, parse_method};
use crate::config::words;
use crate::ruleset::PlanId;
use crate::ruleset::cost::{ChargeRule, ChargeTime, CostRule, Reserve, ResponseCost, Weight, WeightedField};
use crate::ruleset::graphql::GraphQlCost;
use crate::ruleset::prices::rounded_up;
use crate::ruleset::request_field::{FieldPath, RequestFieldCost};
use crate::units::Cost;

const EXPECTED: &str = "a number of tokens, `{by_method: {GET: 1, POST: 5}}`, `{header: NAME, max: 100}`, \
     `{request_field: max_tokens, max: 8000}`, `{graphql: {max: 10000}}`, `{request_bytes: 1KiB}`, `{response_header: NAME}`, `{response_bytes: 1KiB}`, \
     `{response_field: usage.total_tokens}` or `{sum: [{response_field: usage.completion_tokens, times: 4}]}`";

const PARTS: &str =
    "a list of `{response_header: NAME, times: 2}` and `{response_field: usage.total_tokens, times: 3}`";

/// The default bound on a number that a response reports.
const MAX_RESPONSE_NUMBER: Cost = 1_000_000_000;

/// The path of `reserve` in the settings of a limit.
const RESERVED: &[&str] = &["charge", "reserve"];

/// The largest number of parts in a `sum`.
const MAX_PARTS: usize = 16;

/// Reads `cost` and `charge`, and checks that they fit together.
pub(super) fn read(section: &Section<'_>, prices: &PriceTable) -> Option<(CostRule, ChargeRule)> {
    let cost = section.get_or("cost", CostRule::default(), |field| read_cost(field, prices));
    let charge = section.get_or("charge", ChargeRule::default(), |field| read_charge(field, prices));
    let (cost, charge) = (cost?, charge?);
    let goes_by_prices = matches!(&cost, CostRule::Response(ResponseCost { model: Some(_), .. }));
    if let (Some(field), Some(Reserve::FromRequest { price: Some(_), .. }), false) =
        (section.get("charge"), &charge.reserve, goes_by_prices)
    {
        let problem = field.key_error("reserves by a price, and `cost` does not go by prices");
        return field.fail(problem.hint("write `model: { request_field: model }` and a `price` in `cost`"));
    }
    if let (Some(field), true, ChargeTime::Request) = (section.get("cost"), cost.is_in_response(), &charge.when) {
        let problem = field.error("is known only when the response comes").hint("add `charge: {when: response}`");
        return field.fail(problem.expected("a cost that the request tells, or a charge on the response"));
    }
    Some((cost, charge))
}

fn read_cost(field: &Field<'_>, prices: &PriceTable) -> Option<CostRule> {
    if field.is_scalar() {
        return field.whole().map(CostRule::Fixed);
    }
    let section = field.mapping(EXPECTED)?.with(&COST_RULE);
    const KINDS: [(&str, &[&str]); 9] = [
        ("by_method", &["others"]),
        ("header", &["max", "missing"]),
        ("request_field", &["max", "missing"]),
        ("graphql", &[]),
        ("request_bytes", &[]),
        ("response_header", &["max"]),
        ("response_bytes", &[]),
        ("response_field", &["max"]),
        ("sum", &["max", "model"]),
    ];
    let mut kinds = KINDS.iter().filter(|(kind, _)| section.has(kind));
    let Some((kind, others)) = kinds.next() else {
        section.reject_unknown(&KINDS.map(|(kind, _)| kind));
        let silent = section.is_empty();
        return if silent { field.fail(field.error("is empty").expected(EXPECTED)) } else { None };
    };
    if kinds.next().is_some() {
        return field.fail(Problem::error(field.place(), "names more than one way to count").expected(EXPECTED));
    }
    let known: Vec<&str> = [kind].into_iter().chain(others.iter()).copied().collect();
    section.reject_unknown(&known);
    let source = section.get(kind)?;
    match *kind {
        "by_method" => {
            let (methods, others) = (read_methods(&source), section.whole("others"));
            Some(CostRule::ByMethod { methods: methods?, others })
        }
        "header" => {
            let name = source.request_header_name();
            let max = section.required("max", "the most that is believed of a client, like `max: 100`");
            let max = max.and_then(|field| field.whole());
            let missing = section.value_or("missing", 1, Field::whole);
            Some(CostRule::Header { name: name?, max: max?, missing })
        }
        "request_field" => read_request_field(&section, &source).map(CostRule::RequestField),
        "graphql" => read_graphql(&source).map(CostRule::GraphQl),
        "request_bytes" => source.bytes().map(CostRule::RequestBytes),
        "response_bytes" => source.bytes().map(CostRule::ResponseBytes),
        kind => {
            let model = section.get_with("model", |field| prices::read_model(field, prices))?;
            let mut cost = ResponseCost { model, ..ResponseCost::default() };
            let parts = match kind {
                "sum" => read_sum(&mut cost, &source, prices),
                _ => read_part(&mut cost, kind, &source, Weight::Times(1)),
            };
            let max = section.get_with("max", Field::whole);
            cost.max = parts.and(max)?.unwrap_or(cost.max);
            Some(CostRule::Response(cost))
        }
    }
}

/// Reads `graphql`.
fn read_graphql(field: &Field<'_>) -> Option<GraphQlCost> {
    let section = field.section(&GRAPHQL)?;
    let max =
        section.required("max", "the most that a request costs, like `max: 10000`").and_then(|field| field.whole());
    let names = ["first", "last"].map(str::to_owned).to_vec();
    let list_arguments = section.get_or("list_arguments", names, |field| {
        let name = |item: &Field<'_>| {
            item.scalar_value("the name of an argument, like `first`").map(|word| word.text.into_owned())
        };
        all_or_none(field.nonempty_list("a list of names of arguments")?.iter().map(name))
    });
    Some(GraphQlCost {
        path: FieldPath(vec!["query".to_owned()]),
        max_depth: section.whole("max_depth"),
        items: section.whole("items"),
        max: max?,
        list_arguments: list_arguments?,
    })
}

/// Reads the cost from a field in the request's JSON. `source` holds its path.
fn read_request_field(section: &Section<'_>, source: &Field<'_>) -> Option<RequestFieldCost> {
    let path = source.field_path();
    let max = section.required("max", "the most that is believed of a client, like `max: 8000`");
    let max = max.and_then(|field| field.whole());
    let missing = section.get_with("missing", Field::whole);
    let (path, max) = (path?, max?);
    Some(RequestFieldCost { path, max, missing: missing?.unwrap_or(max) })
}

/// Reads `reserve`.
fn read_reserve(field: &Field<'_>, prices: &PriceTable) -> Option<Reserve> {
    if field.is_scalar() {
        return field.whole().map(Reserve::Fixed);
    }
    let section = field.section_or(&RESERVE, "a number of tokens, or `{request_field: max_tokens, max: 8000}`")?;
    let source = section.required("request_field", A_FIELD_PATH)?;
    let price = section.get_with("price", |field| prices::read_column(field, prices));
    let (tokens, price) = (read_request_field(&section, &source)?, price?);
    Some(Reserve::FromRequest { tokens, price })
}

/// Reads one number of the response into `cost`. `field` has the name `kind`: `response_header` or `response_field`.
fn read_part(cost: &mut ResponseCost, kind: &str, field: &Field<'_>, weight: Weight) -> Option<()> {
    match kind {
        "response_header" => cost.headers.push((field.header_name()?, weight)),
        _ => cost.fields.push(WeightedField { path: field.field_path()?, weight }),
    }
    let price = ResponseCost::price(weight, cost.prices(None));
    cost.max = cost.max.max(rounded_up(price.millionths(MAX_RESPONSE_NUMBER)));
    Some(())
}

fn read_sum(cost: &mut ResponseCost, field: &Field<'_>, prices: &PriceTable) -> Option<()> {
    let items = field.list_up_to(MAX_PARTS, "parts", PARTS)?;
    cost.is_sum = true;
    let parts = items.iter().map(|item| {
        let section = item.section(&COST_PART)?;
        let times = Some(Weight::Times(section.whole("times")));
        let weight = match (section.get("price"), section.has("times"), &cost.model) {
            (None, _, _) => times,
            (Some(price), true, _) => price.fail(price.key_error("stands beside `times`")),
            (Some(price), false, None) => {
                let problem = price.key_error("needs the model whose price it is");
                price.fail(problem.hint("write `model: { request_field: model }` beside `sum`"))
            }
            (Some(price), false, Some(_)) => prices::read_column(&price, prices).map(Weight::Price),
        };
        let (kind, number) =
            section.one_of(&["response_header", "response_field"], "`response_header` or `response_field`")?;
        read_part(cost, kind, &number, weight?)
    });
    all_or_none(parts).map(|_| ())
}

fn read_methods(field: &Field<'_>) -> Option<Vec<(String, Cost)>> {
    let section = field.mapping("methods and their costs, like `{GET: 1, POST: 5}`")?;
    all_or_none(section.fields().map(|(method, cost)| match parse_method(method) {
        Ok(method) => cost.whole().map(|cost| (method, cost)),
        Err(invalid) => cost.fail(cost.key_error(invalid.message).hint(invalid.hint)),
    }))
}

fn read_charge(field: &Field<'_>, prices: &PriceTable) -> Option<ChargeRule> {
    let section = field.section(&CHARGE)?;
    let when = section.get_or("when", (false, false), |field| {
        field.choice(&[("request", (false, false)), ("identified", (true, false)), ("response", (false, true))])
    });
    let if_status = section.value_or("if_status", Vec::new(), |field| {
        let expected = "a list of statuses, like `[401, 403, 4xx, 500-599]`";
        all_or_none(field.nonempty_list(expected)?.iter().map(|item| item.read(parse_statuses)))
    });
    let reserve = section.get_with("reserve", |field| read_reserve(field, prices));
    let denied = section.flag("denied");
    let ((identified, on_response), reserve) = (when?, reserve?);
    for name in ["if_status", "reserve"].iter().filter(|_| !on_response) {
        if let Some(field) = section.get(name) {
            let problem = field.key_error("says something only with `when: response`");
            return field.fail(problem.hint("add `when: response`, or leave it out"));
        }
    }
    if let (Some(field), true, Some(Reserve::Fixed(0))) = (section.get("denied"), denied, &reserve) {
        let problem = field.key_error("counts denied requests, of which `reserve: 0` takes nothing");
        return field.fail(problem.hint("leave one of the two out"));
    }
    let when = if on_response { ChargeTime::Response { if_status } } else { ChargeTime::Request };
    Some(ChargeRule { when, reserve, denied, identified })
}

/// Parses `401`, `4xx` or `500-599`, both ends included.
fn parse_statuses(text: &str) -> Result<(u16, u16), InvalidValue> {
    let status = |text: &str| {
        let number = text.parse::<u16>().ok().filter(|_| text.len() == 3);
        number.filter(|status| (100..=599).contains(status))
    };
    let range = match (text.strip_suffix("xx"), text.split_once('-')) {
        (Some(class), _) => status(&format!("{class}00")).zip(status(&format!("{class}99"))),
        (None, Some((from, to))) => status(from).zip(status(to)),
        (None, None) => status(text).map(|status| (status, status)),
    };
    match range {
        Some((from, to)) if from <= to => Ok((from, to)),
        Some((from, to)) => Err(invalid("ends before it begins").hint(format!("did you mean `{to}-{from}`?"))),
        None => Err(invalid("is not a status from 100 to 599")),
    }
}

/// Refuses, at `field`, a rule of whose room `usable` is below `largest_cost`: it could never admit such a request.
pub(super) fn check_room(field: &Field<'_>, usable: Option<Cost>, largest_cost: Cost) -> Option<()> {
    match usable.filter(|max| *max < largest_cost) {
        None => Some(()),
        Some(max) => {
            let message = format!("admits at most {max} at once, and a request takes up to {largest_cost}");
            field.fail(field.key_error(message).hint("raise it"))
        }
    }
}

/// The largest cost of a request that is known before the response.
pub(super) fn largest(cost: &CostRule, charge: &ChargeRule) -> Cost {
    let taken = match (&charge.when, &charge.reserve) {
        (ChargeTime::Response { .. }, Some(Reserve::Fixed(reserve))) => vec![*reserve],
        (ChargeTime::Response { .. }, Some(Reserve::FromRequest { tokens, price: None })) => {
            tokens.written().into_iter().collect()
        }
        (ChargeTime::Response { .. }, Some(Reserve::FromRequest { price: Some(_), .. })) => Vec::new(),
        _ => cost.written(),
    };
    taken.into_iter().max().unwrap_or(0)
}

/// Refuses `charge` for limits of slots, which are released when a request ends, and costs that exceed the limit's capacity.
pub(super) fn check(
    section: &Section<'_>,
    (cost, charge): &(CostRule, ChargeRule),
    bounds: &CostBounds<'_>,
    plans: &[&str],
) -> Option<()> {
    let rules = &bounds.terms.rules;
    if let (Some(field), true) = (section.get("charge"), rules.iter().any(Rule::holds_slots)) {
        let problem = field.key_error("says something only of tokens: slots come back when a request ends");
        return field.fail(problem.hint("leave it out, or count requests under a limit of their own"));
    }
    let largest = largest(cost, charge);
    let Some((plan, max)) = bounds.largest_costs().find(|(_, max)| largest > *max) else {
        return Some(());
    };
    let plan = plan.and_then(|PlanId(plan)| plans.get(plan)).filter(|_| rules.len() > 1 || !bounds.priority.is_empty());
    let whose = plan.map(|plan| format!(" for the plan {}", words::shown(plan))).unwrap_or_default();
    let field = section.at(RESERVED).or_else(|| section.get("cost")).unwrap_or_else(|| section.field.clone());
    let message = format!(
        "can never be admitted: a request would take {largest}, and the limit admits at most {max} at once{whose}"
    );
    field.fail(field.key_error(message).hint("raise the limit or lower the cost"))
}

/// Warns of a `max` above the limit's capacity: a client may report such a cost, and the request never passes.
pub(super) fn warn_if_never_fits(
    section: &Section<'_>,
    (cost, charge): &(CostRule, ChargeRule),
    bounds: &CostBounds<'_>,
) {
    let (max, field) = match (&charge.when, cost, &charge.reserve) {
        (
            ChargeTime::Request,
            CostRule::Header { max, .. }
            | CostRule::RequestField(RequestFieldCost { max, .. })
            | CostRule::GraphQl(GraphQlCost { max, .. }),
            _,
        ) => (max, section.get("cost")),
        (
            ChargeTime::Response { .. },
            _,
            Some(Reserve::FromRequest { tokens: RequestFieldCost { max, .. }, price: None }),
        ) => (max, section.at(RESERVED)),
        _ => return,
    };
    let Some(field) = field else { return };
    let least = bounds.largest_costs().map(|(_, max)| max).min();
    if let Some(least) = least.filter(|least| max > least) {
        let message = format!(
            "believes costs up to {max}, and the limit admits at most {least} at once to some: what costs more can \
             never pass"
        );
        field.warn(&message, "lower `max`, or raise the limit");
    }
}
