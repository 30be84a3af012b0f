//! Prices of models: for a million tokens, by the name of the model.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::ruleset::request_field::{FieldPath, FieldValue, RequestFields};
use crate::units::Cost;

/// The price of one unit, in millionths of a token of the limit. Where that token is a millionth of a dollar, this is the
/// price of a million units in millionths of a dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(pub u64);

/// A table of prices. Each row has one price for each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The names of the columns, like `input`.
    pub columns: Vec<String>,
    /// The prices of the listed models, by name.
    pub models: HashMap<String, Vec<Price>>,
    /// The prices of all other models.
    pub others: Vec<Price>,
    /// The highest price of each column.
    pub highest: Vec<Price>,
}

/// The prices of the model that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    /// The field of the request's body that names the model.
    pub path: FieldPath,
    /// All prices.
    pub prices: Arc<Prices>,
}

impl Price {
    /// A price of `times` tokens of the limit.
    pub const fn whole(times: Cost) -> Self {
        Self(times.saturating_mul(MILLION))
    }

    /// The price of `number` units, in millionths.
    pub fn millionths(self, number: Cost) -> u128 {
        u128::from(number).saturating_mul(u128::from(self.0))
    }
}

const MILLION: u64 = 1_000_000;

/// The whole tokens for this many millionths, rounded up.
pub fn rounded_up(millionths: u128) -> Cost {
    Cost::try_from(millionths.div_ceil(u128::from(MILLION))).unwrap_or(Cost::MAX)
}

impl Prices {
    /// A table with these rows. Models that are not listed have the prices `default`, or else the highest of each column.
    pub fn new(columns: Vec<String>, models: HashMap<String, Vec<Price>>, default: Option<Vec<Price>>) -> Self {
        let highest = |column: usize| {
            let all = models.values().chain(&default).filter_map(|row| row.get(column));
            all.max().copied().unwrap_or_default()
        };
        let highest: Vec<Price> = (0..columns.len()).map(highest).collect();
        Self { columns, models, others: default.unwrap_or_else(|| highest.clone()), highest }
    }
}

impl ModelPrices {
    /// The prices of the model that a request with this body names; the highest where the name cannot be read.
    pub fn of(&self, body: Option<&RequestFields>) -> &[Price] {
        match body.map(|body| body.get(&self.path)) {
            Some(FieldValue::Text(name)) => {
                let listed = str::from_utf8(name).ok().and_then(|name| self.prices.models.get(name));
                listed.unwrap_or(&self.prices.others)
            }
            Some(FieldValue::Missing | FieldValue::Number(_)) => &self.prices.others,
            Some(FieldValue::Unreadable) | None => &self.prices.highest,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prices(default: Option<Vec<Price>>) -> ModelPrices {
        let row = |name: &str, input, output| (name.to_owned(), vec![Price(input), Price(output)]);
        let models = [row("small", 150_000, 600_000), row("large", 2_500_000, 400_000)];
        let columns = vec!["input".to_owned(), "output".to_owned()];
        let prices = Arc::new(Prices::new(columns, models.into_iter().collect(), default));
        ModelPrices { path: FieldPath(vec!["model".to_owned()]), prices }
    }

    fn named(value: FieldValue) -> RequestFields {
        RequestFields::Read { paths: [FieldPath(vec!["model".to_owned()])].into(), values: vec![value] }
    }

    #[test]
    fn no_name_of_a_model_is_free() {
        let text = |name: &str| FieldValue::Text(name.as_bytes().to_vec());
        let highest = [Price(2_500_000), Price(600_000)];
        for default in [None, Some(vec![Price(1), Price(2)])] {
            let prices = prices(default.clone());
            let others = default.unwrap_or(highest.to_vec());
            let of = |value: FieldValue| prices.of(Some(&named(value))).to_vec();
            assert_eq!(of(text("small")), [Price(150_000), Price(600_000)]);
            for other in
                [text("Small"), text(""), text("default"), FieldValue::Missing, FieldValue::Number("1".to_owned())]
            {
                assert_eq!(of(other), others);
            }
            assert_eq!(of(FieldValue::Unreadable), highest);
            assert_eq!(prices.of(None), highest);
            assert_eq!(prices.of(Some(&RequestFields::Unreadable)), highest);
            assert_eq!(prices.of(Some(&RequestFields::NoBody)), others);
        }
    }

    proptest! {
        #[test]
        fn a_sum_of_prices_is_rounded_up_once(parts in prop::collection::vec((0..1_u64 << 40, 0..1_u64 << 40), 0..5)) {
            let exact: u128 = parts.iter().map(|(number, price)| u128::from(*number) * u128::from(*price)).sum();
            let sum = rounded_up(parts.iter().map(|(number, price)| Price(*price).millionths(*number)).sum());
            let sum = u128::from(sum) * 1_000_000;
            prop_assert!(sum >= exact && sum < exact + 1_000_000);
        }
    }
}
