//! What stands above a column: its title, its words and what the colours mean.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{Rectangle, Text};
use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, ShapeStyle};

use super::draw::{DENIED, Failed, Layout, MARGIN, OFFERED, PASSED};
use super::{Column, FONT};

const TITLE: u32 = 20;
const SMALLEST_TITLE: u32 = 13;
const WORDS: u32 = 14;
const MOST_LINES: usize = 3;
const LINE: u32 = 18;
const ONE_LINE: u32 = 70;

/// A title and words as they fit.
pub(super) struct Heading {
    title: String,
    title_size: u32,
    words: Vec<String>,
}

/// How something looks in the picture.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Area(RGBColor),
    Band(RGBColor),
    Line(RGBColor),
    Dashes(RGBColor),
}

// === impl Heading ===

impl Heading {
    /// For a column of this width, in units of the layout.
    pub(super) fn of(column: &Column, width: u32) -> Self {
        let room = width.saturating_sub(2 * MARGIN);
        let title_size = (SMALLEST_TITLE..=TITLE).rev().find(|size| length(&column.title, *size) <= room);
        let title_size = title_size.unwrap_or(SMALLEST_TITLE);
        let title = fitting(&column.title, |text| length(text, title_size) <= room);
        Self { title, title_size, words: wrapped(&column.words, |text| length(text, WORDS) <= room) }
    }

    /// In units of the layout, the legend included.
    pub(super) fn height(&self) -> u32 {
        ONE_LINE + LINE * u32::try_from(self.words.len().saturating_sub(1)).unwrap_or(0)
    }

    pub(super) fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        layout: &Layout,
        has_rate: bool,
    ) -> Result<(), Failed<B>> {
        let left = layout.pixels(MARGIN);
        let title = layout.text(self.title_size).color(&BLACK);
        area.draw(&Text::new(self.title.as_str(), (left, layout.pixels(8)), title))?;
        for (line, y) in self.words.iter().zip((32..).step_by(LINE as usize)) {
            let grey = BLACK.mix(0.7);
            let style = layout.text(WORDS).color(&grey);
            area.draw(&Text::new(line.as_str(), (left, layout.pixels(y)), style))?;
        }
        let traffic =
            [("offered", Mark::Area(OFFERED)), ("passed", Mark::Area(PASSED)), ("denied", Mark::Line(DENIED))];
        let rate = has_rate.then_some(("rate of the limit", Mark::Dashes(BLACK)));
        let entries: Vec<_> = traffic.into_iter().chain(rate).collect();
        legend(area, layout, (left, layout.pixels(layout.header().saturating_sub(12))), &entries)
    }
}

/// Samples with their names, from left to right.
pub(super) fn legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    layout: &Layout,
    (mut x, y): (i32, i32),
    entries: &[(&str, Mark)],
) -> Result<(), Failed<B>> {
    let (half, thin, sample) = (layout.pixels(5), layout.pixels(1), layout.pixels(16));
    for (name, mark) in entries {
        let bar = |from: i32, to: i32, high: i32, low: i32, style: ShapeStyle| {
            area.draw(&Rectangle::new([(x + from, y + high), (x + to, y + low)], style))
        };
        match mark {
            Mark::Area(color) => {
                bar(0, sample, -half, half, color.mix(0.3).filled())?;
                bar(0, sample, -half, thin - half, color.filled())?;
            }
            Mark::Band(color) => bar(0, sample, -half, half, color.mix(0.25).filled())?,
            Mark::Line(color) => bar(0, sample, -thin, 0, color.filled())?,
            Mark::Dashes(color) => {
                bar(0, sample * 2 / 5, -thin, 0, color.filled())?;
                bar(sample * 3 / 5, sample, -thin, 0, color.filled())?;
            }
        }
        let style = layout.text(WORDS).color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        x += sample + half;
        let (length, _) = area.estimate_text_size(name, &style)?;
        area.draw(&Text::new(*name, (x, y), style))?;
        x += i32::try_from(length).unwrap_or(0) + 3 * half;
    }
    Ok(())
}

/// In units of the layout, with some room for a viewer whose letters are wider.
fn length(text: &str, size: u32) -> u32 {
    let font = (FONT, size).into_font();
    let length = font.box_size(text).map_or(0, |(length, _)| length);
    length + length / 12
}

/// Lines that fit, broken between words; what is too much for the last one is cut.
fn wrapped(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() == MOST_LINES;
        if let Some(line) = lines.last_mut() {
            let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
            if last || line.is_empty() || fits(&longer) {
                *line = longer;
                continue;
            }
        }
        lines.push(word.to_owned());
    }
    lines.iter().map(|line| fitting(line, &fits)).collect()
}

/// `text`, or as many of its characters as `fits` allows.
fn fitting(text: &str, fits: impl Fn(&str) -> bool) -> String {
    if fits(text) {
        return text.to_owned();
    }
    let mut shorter: Vec<char> = text.chars().collect();
    loop {
        shorter.pop();
        let candidate: String = shorter.iter().chain(&['\u{2026}']).collect();
        if shorter.is_empty() || fits(&candidate) {
            return candidate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_broken_into_lines_and_only_cut_where_there_is_no_room_left() {
        let lines = |text| wrapped(text, |line| line.chars().count() <= 10);
        assert_eq!(lines("20 at once"), ["20 at once"]);
        assert_eq!(lines("20 at once, then one every 1s"), ["20 at", "once, then", "one every\u{2026}"]);
        assert_eq!(lines("20 at once, then one"), ["20 at", "once, then", "one"]);
        assert_eq!(lines("abcdefghijkl m"), ["abcdefghi\u{2026}", "m"]);
        assert_eq!(lines(""), [""]);
    }
}
