//! Lays the panels out and draws them.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::element::Rectangle;
use plotters::series::{AreaSeries, DashedLineSeries, LineSeries};
use plotters::style::{BLACK, Color, RGBColor, WHITE};

use super::axis::{Unit, label};
use super::heading::{self, Heading, Mark};
use super::{Area, Column, DENIED, DrawError, MARGIN, MAX_COLUMNS, OFFERED, PASSED, PlotError, pixels, text};
use crate::simulation::series::{Bin, LevelKind};
use crate::units::Nanos;

type Chart<'a, 's> = ChartContext<'a, SVGBackend<'s>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const WAIT: RGBColor = RGBColor(0x94, 0x67, 0xbd);
const LATENCY: RGBColor = RGBColor(0xc8, 0x7a, 0x0a);
const LEVEL: RGBColor = RGBColor(0x2c, 0x8a, 0x2c);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

const COLUMNS_PER_ROW: usize = 4;
const MAX_BINS: usize = 150;
const PANEL: u32 = 190;
/// The space above a panel, and above a panel with a legend of its own.
const GAP: u32 = 8;
const LEGEND: u32 = 24;
/// The space for the numbers on the y axis.
const Y_LABELS: u32 = 58;

/// The arrangement of the picture, and the scales of its axes.
pub(super) struct Layout {
    columns: usize,
    rows: usize,
    headings: Vec<Heading>,
    bins: Vec<(Nanos, Vec<Bin>)>,
    /// The start of the traffic, which is the same in all columns.
    start: Nanos,
    time: Axis,
    traffic: Axis,
    times: Vec<TimePanel>,
    level: Option<f64>,
}

/// A panel for a time that requests take: waits or latencies.
struct TimePanel {
    title: &'static str,
    color: RGBColor,
    axis: Axis,
    of: fn(&Bin) -> Option<Nanos>,
}

/// An axis: its unit, and its end in that unit.
#[derive(Clone, Copy)]
struct Axis {
    unit: Unit,
    end: f64,
}

// === impl Layout ===

impl Layout {
    /// Lays out a picture of these columns.
    pub(super) fn of(columns: &[Column]) -> Result<Self, PlotError> {
        if columns.len() > MAX_COLUMNS {
            return Err(PlotError::TooMany(columns.len()));
        }
        let bins: Vec<_> = columns.iter().map(|column| column.series.bins(MAX_BINS)).collect();
        let ends =
            bins.iter().map(|(width, bins)| Nanos::saturating_from(u128::from(width.get()) * bins.len() as u128));
        let end = ends.max().unwrap_or_default().max(Nanos::new(1));
        let time = Unit::for_time(end);
        let highest = bins.iter().flat_map(|(width, bins)| {
            bins.iter().map(|bin| per_second(bin.offered.max(bin.passed).max(bin.denied), *width))
        });
        let highest = highest.chain(columns.iter().filter_map(|column| column.rate)).fold(0.0, f64::max);
        let traffic = Unit::for_rate(highest);
        let every = || bins.iter().flat_map(|(_, bins)| bins);
        let panel = |title, color, of: fn(&Bin) -> Option<Nanos>| {
            let longest = every().filter_map(of).max().filter(|longest| *longest > Nanos::ZERO)?;
            let unit = Unit::for_time(longest);
            Some(TimePanel { title, color, axis: Axis { unit, end: unit.of(longest) * 1.08 }, of })
        };
        let waits = panel("longest wait", WAIT, |bin| bin.wait);
        let latencies = panel("longest latency", LATENCY, |bin| bin.latency);
        let times = waits.into_iter().chain(latencies).collect();
        let levels = || every().filter_map(|bin| bin.level);
        let level = levels().next().map(|_| levels().map(|level| level.high).fold(1.0, f64::max) * 1.08);
        let in_a_row = columns.len().clamp(1, COLUMNS_PER_ROW);
        Ok(Self {
            columns: in_a_row,
            headings: columns.iter().map(|column| Heading::of(column, column_width(in_a_row))).collect(),
            rows: columns.len().div_ceil(COLUMNS_PER_ROW).max(1),
            start: columns.first().map(|column| column.series.start()).unwrap_or_default(),
            time: Axis { unit: time, end: time.of(end) },
            traffic: Axis { unit: traffic, end: (traffic.per(highest) * 1.08).max(1.0) },
            times,
            level,
            bins,
        })
    }

    /// The size in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        let (columns, rows) = (whole(self.columns), whole(self.rows));
        (columns * column_width(self.columns), rows * self.row_height())
    }

    /// The height above the panels.
    pub(super) fn header(&self) -> u32 {
        self.headings.iter().map(Heading::height).max().unwrap_or_default()
    }

    fn row_height(&self) -> u32 {
        self.header() + whole(self.panels()) * PANEL + MARGIN
    }

    /// The number of panels in every column.
    fn panels(&self) -> usize {
        1 + self.times.len() + usize::from(self.level.is_some())
    }
}

const fn column_width(in_a_row: usize) -> u32 {
    match in_a_row {
        1 => 820,
        2 => 560,
        _ => 440,
    }
}

/// Draws the whole picture.
pub(super) fn picture(root: &Area<'_>, layout: &Layout, columns: &[Column]) -> Result<(), DrawError> {
    root.fill(&WHITE)?;
    let cells = root.split_evenly((layout.rows, layout.columns));
    let headings = layout.headings.iter().zip(columns);
    for ((cell, (heading, column)), (width, bins)) in cells.iter().zip(headings).zip(&layout.bins) {
        let (header, panels) = cell.split_vertically(pixels(layout.header()));
        heading.draw(&header, layout.header(), column.rate.is_some())?;
        let panels = panels.margin(0, pixels(MARGIN), 0, 0).split_evenly((layout.panels(), 1));
        let steps = Steps { width: layout.time.unit.of(*width), bins };
        let last = panels.len();
        let mut panels = panels.iter().zip(1..);
        if let Some((panel, number)) = panels.next() {
            traffic(panel, layout, column, &steps, *width, number == last)?;
        }
        for (time, (panel, number)) in layout.times.iter().zip(&mut panels) {
            times(panel, layout, time, &steps, number == last)?;
        }
        if let (Some(end), Some((panel, _))) = (layout.level, panels.next()) {
            level(panel, layout, end, column, &steps)?;
        }
    }
    Ok(())
}

/// The bins of one column, as points of lines that go up and down in steps.
struct Steps<'a> {
    width: f64,
    bins: &'a [Bin],
}

impl Steps<'_> {
    /// One line through all bins; neighbouring bins with equal values make one step.
    fn of(&self, value: impl Fn(&Bin) -> f64) -> Vec<(f64, f64)> {
        self.runs(|bin| Some(value(bin))).into_iter().flatten().collect()
    }

    /// A line for every run of bins that have a value.
    fn runs(&self, value: impl Fn(&Bin) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
        let (mut lines, mut line) = (Vec::new(), Vec::<(f64, f64)>::new());
        for (bin, (left, right)) in self.bins.iter().zip(self.edges()) {
            match (value(bin), line.last_mut()) {
                (Some(value), Some(last)) if last.1 == value => last.0 = right,
                (Some(value), _) => line.extend([(left, value), (right, value)]),
                (None, Some(_)) => lines.push(std::mem::take(&mut line)),
                (None, None) => {}
            }
        }
        lines.push(line);
        lines
    }

    fn edges(&self) -> impl Iterator<Item = (f64, f64)> {
        let edge = |number: u32| f64::from(number) * self.width;
        (0..).map(move |number: u32| (edge(number), edge(number + 1)))
    }
}

fn traffic(
    area: &Area<'_>,
    layout: &Layout,
    column: &Column,
    steps: &Steps<'_>,
    width: Nanos,
    last: bool,
) -> Result<(), DrawError> {
    let Axis { unit, end } = layout.traffic;
    let mut chart = chart(area, layout, (GAP, end), &format!("tokens per {}", unit.name), last)?;
    let of = |count: fn(&Bin) -> u64| steps.of(|bin| unit.per(per_second(count(bin), width)));
    chart.draw_series(AreaSeries::new(of(|bin| bin.offered), 0.0, OFFERED.mix(0.25)))?;
    chart.draw_series(LineSeries::new(of(|bin| bin.offered), OFFERED.stroke_width(1)))?;
    chart.draw_series(AreaSeries::new(of(|bin| bin.passed), 0.0, PASSED.mix(0.3)))?;
    chart.draw_series(LineSeries::new(of(|bin| bin.passed), PASSED.stroke_width(1)))?;
    if steps.bins.iter().any(|bin| bin.denied > 0) {
        chart.draw_series(LineSeries::new(of(|bin| bin.denied), DENIED.stroke_width(1)))?;
    }
    if let Some(rate) = column.rate.map(|rate| unit.per(rate)) {
        let line = [(0.0, rate), (layout.time.end, rate)];
        let dash = pixels(5);
        chart.draw_series(DashedLineSeries::new(line, dash, dash, BLACK.stroke_width(1)))?;
    }
    Ok(())
}

fn times(area: &Area<'_>, layout: &Layout, panel: &TimePanel, steps: &Steps<'_>, last: bool) -> Result<(), DrawError> {
    let TimePanel { title, color, axis, of } = panel;
    let title = format!("{title} ({})", axis.unit.name);
    let mut chart = chart(area, layout, (GAP, axis.end), &title, last)?;
    let points = || steps.of(|bin| of(bin).map_or(0.0, |time| axis.unit.of(time)));
    chart.draw_series(AreaSeries::new(points(), 0.0, color.mix(0.3)))?;
    chart.draw_series(LineSeries::new(points(), color.stroke_width(1)))?;
    Ok(())
}

fn level(area: &Area<'_>, layout: &Layout, end: f64, column: &Column, steps: &Steps<'_>) -> Result<(), DrawError> {
    let title = match column.series.level() {
        Some(LevelKind::Remaining) => "tokens left",
        Some(LevelKind::MeasuredRate) => "measured tokens per period",
        None => "no level",
    };
    let ranges = steps.bins.iter().zip(steps.edges()).filter_map(|(bin, (left, right))| {
        let level = bin.level.filter(|level| level.low < level.high)?;
        Some(Rectangle::new([(left, level.low), (right, level.high)], LEVEL.mix(0.25).filled()))
    });
    let ranges: Vec<_> = ranges.collect();
    let line = column.series.level().map(|_| ("after the last request", Mark::Line(LEVEL)));
    let band = (!ranges.is_empty()).then_some(("lowest to highest", Mark::Band(LEVEL)));
    let entries: Vec<_> = line.into_iter().chain(band).collect();
    heading::legend(area, (pixels(Y_LABELS + 4), pixels(LEGEND / 2)), &entries)?;
    let mut chart = chart(area, layout, (LEGEND, end), title, true)?;
    chart.draw_series(ranges)?;
    for line in steps.runs(|bin| bin.level.map(|level| level.last)) {
        chart.draw_series(LineSeries::new(line, LEVEL.stroke_width(1)))?;
    }
    Ok(())
}

/// An empty panel with `top` pixels above it, whose y axis ends at `end`. The x axis has a title only in the `last` panel
/// of a column.
fn chart<'a, 's>(
    area: &'a Area<'s>,
    layout: &Layout,
    (top, end): (u32, f64),
    y_title: &str,
    last: bool,
) -> Result<Chart<'a, 's>, DrawError> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(pixels(4))
        .margin_right(pixels(18))
        .margin_top(pixels(top))
        .x_label_area_size(pixels(if last { 40 } else { 22 }))
        .y_label_area_size(pixels(Y_LABELS))
        .build_cartesian_2d(0.0..layout.time.end, 0.0..end)?;
    let x_title = match (last, layout.start) {
        (false, _) => String::new(),
        (true, Nanos::ZERO) => format!("time ({})", layout.time.unit.name),
        (true, start) => format!("time since {} s ({})", start.secs_ceil(), layout.time.unit.name),
    };
    chart
        .configure_mesh()
        .x_desc(x_title)
        .y_desc(y_title)
        .axis_desc_style(text(15))
        .label_style(text(13))
        .x_labels(8)
        .y_labels(5)
        .x_label_formatter(&|value| label(*value))
        .y_label_formatter(&|value| label(*value))
        .bold_line_style(GRID)
        .max_light_lines(0)
        .axis_style(BLACK.mix(0.6))
        .draw()?;
    Ok(chart)
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn per_second(count: u64, width: Nanos) -> f64 {
    count as f64 / width.as_secs_f64()
}

fn whole(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
