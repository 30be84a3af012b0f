//! `prices:`, and the parts of `cost` that use prices.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::config::read::{Field, Section, all_or_none};
use crate::config::scalar;
use crate::config::settings::MODEL;
use crate::ruleset::prices::{ModelPrices, Price, Prices};

/// The price table. The outer `None` means that it could not be read, the inner one that the file has none.
pub(super) type PriceTable = Option<Option<Arc<Prices>>>;

/// The row for models that are not in the table.
const DEFAULT: &str = "default";

const ROW: &str = "prices of a million tokens, like `{ input: 0.15, output: 0.60 }`";

/// Reads `prices:`.
pub(super) fn read(top: &Section<'_>) -> PriceTable {
    top.get_with("prices", read_table).map(|table| table.map(Arc::new))
}

fn read_table(field: &Field<'_>) -> Option<Prices> {
    let models = field.mapping("models, each with its prices")?;
    if models.is_empty() {
        return field.fail(field.error("is empty").expected("models, each with its prices"));
    }
    let rows = all_or_none(models.fields().map(|(model, field)| {
        let row = field.mapping(ROW)?;
        let prices =
            row.fields().map(|(name, price)| Some((name, price.parsed("a price, like `0.15`", scalar::price)?)));
        Some((model, field, all_or_none(prices)?))
    }))?;
    let mut columns: Vec<String> = Vec::new();
    for (name, _) in rows.iter().flat_map(|(_, _, row)| row) {
        if !columns.iter().any(|known| known == name) {
            columns.push((*name).to_owned());
        }
    }
    let (mut by_model, mut default) = (HashMap::new(), None);
    for (model, field, row) in rows {
        let price = |column: &String| match row.iter().find(|(name, _)| name == column) {
            Some((_, price)) => Some(*price),
            None => field.fail(field.key_error(format!("lacks the price `{column}`, which another has")).expected(ROW)),
        };
        let row: Vec<Price> = all_or_none(columns.iter().map(price))?;
        match model {
            DEFAULT => default = Some(row),
            model => drop(by_model.insert(model.to_owned(), row)),
        }
    }
    Some(Prices::new(columns, by_model, default))
}

/// Reads the place where requests name their model.
pub(super) fn read_model(field: &Field<'_>, prices: &PriceTable) -> Option<ModelPrices> {
    let section = field.section(&MODEL)?;
    let path = section.must("request_field", Field::field_path)?;
    match prices.as_ref()? {
        Some(prices) => Some(ModelPrices { path, prices: Arc::clone(prices) }),
        None => field.fail(field.key_error("goes by `prices`, and the file has none")),
    }
}

/// Reads the name of a price; returns the position of its column.
pub(super) fn read_column(field: &Field<'_>, prices: &PriceTable) -> Option<usize> {
    let name = field.scalar_value("the name of a price in `prices`")?.text;
    let Some(prices) = prices.as_ref()? else {
        return field.fail(field.key_error("goes by `prices`, and the file has none"));
    };
    let columns = &prices.columns;
    columns.iter().position(|column| *column == *name).or_else(|| {
        let hint = field.findings().suggest(&name, columns.iter().map(String::as_str));
        field.fail(field.error("is no price in `prices`").hint(hint))
    })
}
