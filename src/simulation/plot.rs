//! Runs as a picture, SVG or PNG: a column of panels per limit, all columns on the same scales.
//!
//! The top panel shows what was offered, what passed (at the time of passing) and what was denied, the next the waits
//! (where anything waited), the last the level of the state: tokens left, or the rate that the algorithm measures. The
//! letters of a PNG come from a font inside the program, those of an SVG from the viewer's own sans-serif.

use std::sync::OnceLock;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;
use plotters::style::{FontStyle, register_font};

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
    /// What it allows in the long run, in tokens per second, where that can be said.
    pub rate: Option<f64>,
    /// What happened.
    pub series: Series,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// There are too many columns for a picture.
    #[error("found {0} limits, expected at most {MOST_COLUMNS} in one picture")]
    TooMany(usize),
    /// The drawing library gave up.
    #[error("cannot draw the picture: {0}")]
    Draw(String),
    /// The picture cannot be encoded.
    #[error("cannot encode the picture: {0}")]
    Encode(#[from] png::EncodingError),
}

/// More than this make no readable picture.
pub const MOST_COLUMNS: usize = 64;

/// Pixels of a PNG for one unit of the layout.
const PNG_SCALE: u32 = 2;

const FONT: &str = "sans-serif";

/// The picture as the text of an SVG file.
pub fn svg(columns: &[Column]) -> Result<String, PlotError> {
    know_the_font()?;
    let layout = draw::Layout::of(columns, 1)?;
    let mut text = String::new();
    paint(SVGBackend::with_string(&mut text, layout.size()), &layout, columns)?;
    Ok(text)
}

/// The picture as the bytes of a PNG file.
pub fn png(columns: &[Column]) -> Result<Vec<u8>, PlotError> {
    know_the_font()?;
    let layout = draw::Layout::of(columns, PNG_SCALE)?;
    let (width, height) = layout.size();
    let mut pixels = vec![0; width as usize * height as usize * 3];
    paint(BitMapBackend::with_buffer(&mut pixels, (width, height)), &layout, columns)?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(file)
}

/// Before anything is laid out: letters are measured.
fn know_the_font() -> Result<(), PlotError> {
    static FONT_IS_KNOWN: OnceLock<bool> = OnceLock::new();
    match FONT_IS_KNOWN.get_or_init(|| register_font(FONT, FontStyle::Normal, notosans::REGULAR_TTF).is_ok()) {
        true => Ok(()),
        false => Err(PlotError::Draw("the font inside the program cannot be read".to_owned())),
    }
}

fn paint<B: DrawingBackend>(backend: B, layout: &draw::Layout, columns: &[Column]) -> Result<(), PlotError> {
    let root = backend.into_drawing_area();
    draw::picture(&root, layout, columns).map_err(|error| PlotError::Draw(error.to_string()))?;
    root.present().map_err(|error| PlotError::Draw(error.to_string()))
}

#[cfg(test)]
mod tests;
