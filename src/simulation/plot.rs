//! Draws runs as an SVG picture: a column of panels for each limit, all columns on the same scales.
//!
//! The top panel shows the tokens that were offered, that passed (at the time of passing) and that were denied. The next
//! panel shows the waits, if any request waited. The last panel shows the level of the state: the tokens left, or the rate
//! that the algorithm measures. The viewer's own sans-serif font draws the text; its size here is an estimate.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::{IntoFont, RGBColor, TextStyle};

use crate::simulation::series::Series;

mod axis;
mod draw;
mod heading;

/// One limit's part of the picture.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading: the limit's name and algorithm.
    pub title: String,
    /// The limit in plain words.
    pub words: String,
    /// The rate that the limit allows in the long run, in tokens per second; `None` if it is not known.
    pub rate: Option<f64>,
    /// The course of the run.
    pub series: Series,
}

/// The reason why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// There are too many columns for a picture.
    #[error("found {0} limits, expected at most {MAX_COLUMNS} in one picture")]
    TooMany(usize),
    /// The drawing library failed.
    #[error("cannot draw the picture: {0}")]
    Draw(#[from] DrawError),
}

type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// More than this make no readable picture.
pub const MAX_COLUMNS: usize = 64;

const FONT: &str = "sans-serif";
const MARGIN: u32 = 10;
const OFFERED: RGBColor = RGBColor(0x8c, 0x8c, 0x8c);
const PASSED: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const DENIED: RGBColor = RGBColor(0xd6, 0x27, 0x28);

/// The picture as the text of an SVG file.
pub fn svg(columns: &[Column]) -> Result<String, PlotError> {
    let layout = draw::Layout::of(columns)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, layout.size()).into_drawing_area();
        draw::picture(&root, &layout, columns)?;
        root.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests;

fn pixels(length: u32) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn text(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().into()
}
