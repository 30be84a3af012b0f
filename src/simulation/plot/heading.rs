//! The heading of a column: its title, its words and the legend of the colours.

use plotters::element::{Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, RGBColor, ShapeStyle};

use super::{Area, Column, DENIED, DrawError, MARGIN, OFFERED, PASSED, pixels, text};

const TITLE: u32 = 20;
const MIN_TITLE: u32 = 13;
const WORDS: u32 = 14;
const MAX_LINES: usize = 3;
const LINE: u32 = 18;
const ONE_LINE: u32 = 70;

/// A title and words, shortened and wrapped to fit.
pub(super) struct Heading {
    title: String,
    title_size: u32,
    words: Vec<String>,
}

/// The mark of an entry in a legend.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Area(RGBColor),
    Band(RGBColor),
    Line(RGBColor),
    Dashes(RGBColor),
}

// === impl Heading ===

impl Heading {
    /// Fits the heading into a column of this width.
    pub(super) fn of(column: &Column, width: u32) -> Self {
        let room = width.saturating_sub(2 * MARGIN);
        let title_size = (MIN_TITLE..=TITLE).rev().find(|size| length(&column.title, *size) <= room);
        let title_size = title_size.unwrap_or(MIN_TITLE);
        let title = fitting(&column.title, |text| length(text, title_size) <= room);
        Self { title, title_size, words: wrapped(&column.words, |text| length(text, WORDS) <= room) }
    }

    /// The height, with the legend.
    pub(super) fn height(&self) -> u32 {
        ONE_LINE + LINE * u32::try_from(self.words.len().saturating_sub(1)).unwrap_or(0)
    }

    /// Draws the heading into an area whose panels begin at `bottom`.
    pub(super) fn draw(&self, area: &Area<'_>, bottom: u32, has_rate: bool) -> Result<(), DrawError> {
        let left = pixels(MARGIN);
        let title = text(self.title_size).color(&BLACK);
        area.draw(&Text::new(self.title.as_str(), (left, pixels(8)), title))?;
        for (line, y) in self.words.iter().zip((32..).step_by(LINE as usize)) {
            let grey = BLACK.mix(0.7);
            let style = text(WORDS).color(&grey);
            area.draw(&Text::new(line.as_str(), (left, pixels(y)), style))?;
        }
        let traffic =
            [("offered", Mark::Area(OFFERED)), ("passed", Mark::Area(PASSED)), ("denied", Mark::Line(DENIED))];
        let rate = has_rate.then_some(("rate of the limit", Mark::Dashes(BLACK)));
        let entries: Vec<_> = traffic.into_iter().chain(rate).collect();
        legend(area, (left, pixels(bottom.saturating_sub(12))), &entries)
    }
}

/// Draws samples with their names, from left to right.
pub(super) fn legend(area: &Area<'_>, (mut x, y): (i32, i32), entries: &[(&str, Mark)]) -> Result<(), DrawError> {
    let (half, thin, sample) = (pixels(5), pixels(1), pixels(16));
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
        let style = text(WORDS).color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        x += sample + half;
        let (length, _) = area.estimate_text_size(name, &style)?;
        area.draw(&Text::new(*name, (x, y), style))?;
        x += i32::try_from(length).unwrap_or(0) + 3 * half;
    }
    Ok(())
}

/// An estimate of a text's length in pixels, with some room for wide letters.
fn length(text: &str, size: u32) -> u32 {
    const PERCENT_OF_SIZE: u32 = 42;
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX).saturating_mul(size * PERCENT_OF_SIZE) / 100
}

/// Lines that fit, broken between words; the last line is cut if it is too long.
fn wrapped(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() == MAX_LINES;
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
