//! Charts as SVG.

mod frame;
mod heat;
mod lines;
mod marks;

use super::chart::{Chart, Data};
use super::heat_map::HeatMap;
use super::svg::{Anchor, Canvas, Letters, MARGIN, Paint, text_width};
use frame::{TEXT, TITLE, WIDTH};

/// The chart as a file.
pub(super) fn document(chart: &Chart) -> String {
    draw(chart, true)
}

/// The chart as an element of a page.
pub(super) fn inline(chart: &Chart) -> String {
    draw(chart, false)
}

/// A heat map, as a file or as an element of a page.
pub(super) fn heat_document(map: &HeatMap, file: bool) -> String {
    let draw = |canvas: &mut Canvas| heat::heat(canvas, map);
    titled(&map.title, &map.subtitle, file, draw)
}

fn draw(chart: &Chart, file: bool) -> String {
    let draw = |canvas: &mut Canvas| match &chart.data {
        Data::Lines(series) => lines::lines(canvas, chart, series),
        Data::Scatter(marks) => marks::scatter(canvas, chart, marks),
        Data::Bars(marks) => marks::rows(canvas, chart, marks, true),
        Data::Dots(marks) => marks::rows(canvas, chart, marks, false),
    };
    titled(&chart.title, &chart.subtitle, file, draw)
}

/// Distance of lines of text.
const LINE: f64 = 18.0;

/// A text in lines of at most this width; a longer word has a line of its own.
fn broken(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), TEXT) <= room => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// An image under its title; `draw` returns its height, or `None` if there is nothing to show.
fn titled(title: &str, subtitle: &str, file: bool, draw: impl FnOnce(&mut Canvas) -> Option<f64>) -> String {
    let mut canvas = Canvas::default();
    let heading = Letters::new(TITLE, Paint::Ink, Anchor::Start);
    canvas.text((MARGIN, 26.0), title, Letters { bold: true, ..heading });
    let lines = broken(subtitle, WIDTH - 2.0 * MARGIN);
    for (number, line) in lines.iter().enumerate() {
        canvas.text((MARGIN, 46.0 + LINE * number as f64), line, Letters::new(TEXT, Paint::Muted, Anchor::Start));
    }
    let down = LINE * lines.len().saturating_sub(1) as f64;
    let height = canvas.lowered(down, |canvas| {
        draw(canvas).unwrap_or_else(|| {
            canvas.text((WIDTH / 2.0, 110.0), "no values to show", Letters::new(TEXT, Paint::Muted, Anchor::Middle));
            150.0
        })
    });
    canvas.finish((WIDTH, height + down), title, subtitle, file)
}

#[cfg(test)]
mod tests {
    use super::super::chart::{Axis, Mark, Point, Scale, Series};
    use super::*;

    fn well_formed(chart: &Chart) -> usize {
        for svg in [chart.to_svg(), chart.to_inline_svg()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{chart:?}");
            roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {chart:?}"));
        }
        chart.to_svg().matches("<path").count()
    }

    fn mark(name: &str, x: f64, y: f64, deviation: f64) -> Mark {
        Mark { name: name.into(), x, y, deviation, style: 0 }
    }

    #[test]
    fn odd_values_do_not_break_any_chart() {
        let values = [0.0, -1.0, 5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, -1e308, 1e-308, 1e149, -1e149];
        let scales = [Scale::Linear, Scale::Log, Scale::Log2];
        for (x_scale, y_scale) in scales.iter().flat_map(|x| scales.map(|y| (*x, y))) {
            for unit in ["", "%", "B", "ms"] {
                let axes = |chart: Chart| {
                    chart
                        .axes(Axis::new("x<&\"", unit).scale(x_scale), Axis::new("y", unit).scale(y_scale))
                        .rule(f64::NAN, "<r>")
                };
                let marks: Vec<Mark> =
                    values.iter().flat_map(|x| values.map(|y| mark("<&'\u{1}\">", *x, y, *x))).collect();
                let points = marks.iter().map(|m| Point::deviating(m.x, m.y, m.deviation)).collect();
                let series = vec![Series { name: "</svg>".into(), points, style: usize::MAX }];
                for data in
                    [Data::Lines(series), Data::Scatter(marks.clone()), Data::Bars(marks.clone()), Data::Dots(marks)]
                {
                    well_formed(&axes(Chart::new("<title> & \"x\"", "]]>", data)));
                }
            }
        }
    }

    #[test]
    fn a_long_subtitle_takes_lines_and_moves_the_rest_down() {
        let chart = |subtitle: &str| Chart::new("t", subtitle, Data::Lines(vec![Series::new("a", 0, [(0.0, 1.0)])]));
        let [short, long] = [chart("1 run"), chart(&"30 layers of 9 heads ".repeat(12))].map(|chart| chart.to_svg());
        let height = |svg: &str| -> f64 {
            let document = roxmltree::Document::parse(svg).unwrap();
            document.root_element().attribute("height").unwrap().parse().unwrap()
        };
        assert_eq!(height(&long), height(&short) + 2.0 * LINE);
        assert_eq!((short.contains("translate"), long.contains("translate(0 36)")), (false, true));
        let document = roxmltree::Document::parse(&long).unwrap();
        let texts = document.descendants().filter(|node| node.tag_name().name() == "text");
        assert!(texts.filter_map(|node| node.text()).all(|text| text_width(text, TEXT) <= WIDTH - 2.0 * MARGIN));
        assert_eq!(broken("a  b", 1.0), ["a", "b"]);
    }

    #[test]
    fn nothing_to_show_is_said() {
        let empty = [
            Data::Lines(vec![]),
            Data::Lines(vec![Series::new("a", 0, [])]),
            Data::Lines(vec![Series::new("a", 0, [(0.0, f64::NAN)])]),
            Data::Bars(vec![]),
            Data::Dots(vec![mark("a", 0.0, f64::INFINITY, 0.0)]),
            Data::Scatter(vec![mark("a", f64::NAN, 1.0, 0.0)]),
        ];
        for data in empty {
            let chart = Chart::new("t", "s", data).rule(0.5, "chance");
            assert!(chart.to_svg().contains("no values to show") || matches!(chart.data, Data::Lines(_)), "{chart:?}");
            well_formed(&chart);
        }
    }

    #[test]
    fn lines_break_where_values_are_missing() {
        let line = |values: &[f64]| {
            let points = values.iter().enumerate().map(|(x, y)| (x as f64, *y));
            well_formed(&Chart::new("", "", Data::Lines(vec![Series::new("a", 0, points)])))
        };
        // One more line segment, one marker less.
        assert_eq!(line(&[1.0, 2.0, f64::NAN, 2.0, 1.0]), line(&[1.0, 2.0, 3.0, 2.0, 1.0]));
        assert_eq!(line(&[1.0, 2.0, 3.0, 2.0]) + 1, line(&[1.0, 2.0, 3.0, 2.0, 1.0]));
    }

    #[test]
    fn long_curves_stay_small() {
        let noise = (0..200_000u64).map(|i| (i as f64, (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64));
        let chart = Chart::new("", "", Data::Lines(vec![Series::new("a", 0, noise)]));
        assert!(chart.to_svg().len() < 100_000, "{}", chart.to_svg().len());
    }

    #[test]
    fn runs_are_averaged_step_by_step() {
        let runs = [vec![(0.0, 1.0), (1.0, 2.0)], vec![(0.0, 3.0), (1.0, f64::NAN), (2.0, 5.0)]];
        let series = Series::over_runs("a", 0, &runs);
        let flat: Vec<_> = series.points.iter().map(|p| (p.x, p.y, p.above)).collect();
        assert_eq!(flat, [(0.0, 2.0, 2f64.sqrt()), (1.0, 2.0, 0.0), (2.0, 5.0, 0.0)]);
    }
}
