//! Label placement without overlap.

/// An axis-aligned rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Area {
    fn overlap(&self, other: &Self) -> f64 {
        let wide = self.right.min(other.right) - self.left.max(other.left);
        let high = self.bottom.min(other.bottom) - self.top.max(other.top);
        if wide > 0.0 && high > 0.0 { wide * high } else { 0.0 }
    }

    /// Whether it contains a point.
    pub fn holds(&self, (x, y): (f64, f64)) -> bool {
        (self.left..=self.right).contains(&x) && (self.top..=self.bottom).contains(&y)
    }

    /// Its area outside `frame`.
    fn outside(&self, frame: &Self) -> f64 {
        let area = (self.right - self.left) * (self.bottom - self.top);
        area - self.overlap(frame)
    }
}

/// Moves heights at least `gap` apart, within `top..=bottom` if they fit, as little as possible while keeping their
/// order. Returns the new heights in the given order.
pub(super) fn spread(heights: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|a, b| heights[*a].total_cmp(&heights[*b]));
    // Groups of touching labels, each around the mean of its members' desired positions: (sum of desired positions,
    // members).
    let mut groups: Vec<(f64, usize)> = Vec::new();
    let centre = |group: &(f64, usize)| {
        let half = (group.1 - 1) as f64 * gap / 2.0;
        (group.0 / group.1 as f64).min(bottom - half).max(top + half)
    };
    for index in &order {
        let mut group = (heights[*index].clamp(top.min(bottom), bottom.max(top)), 1);
        while let Some(above) = groups.last() {
            let reach = (above.1 + group.1) as f64 * gap / 2.0;
            if centre(&group) - centre(above) >= reach - 1e-9 {
                break;
            }
            group = (group.0 + above.0, group.1 + above.1);
            groups.pop();
        }
        groups.push(group);
    }
    let mut placed = vec![0.0; heights.len()];
    let mut next = order.iter();
    for group in &groups {
        let first = centre(group) - (group.1 - 1) as f64 * gap / 2.0;
        for (step, index) in next.by_ref().take(group.1).enumerate() {
            placed[*index] = first + step as f64 * gap;
        }
    }
    placed
}

/// Finds a rectangle of each size near its point, away from all points, from `obstacles`, from each other and from the
/// edges. Takes the nearest free place, or the one with the least overlap.
pub(super) fn beside(points: &[(f64, f64)], sizes: &[(f64, f64)], obstacles: &[Area], frame: &Area) -> Vec<Area> {
    const RADIUS: f64 = 8.5;
    let around = |point: &(f64, f64)| Area {
        left: point.0 - RADIUS,
        top: point.1 - RADIUS,
        right: point.0 + RADIUS,
        bottom: point.1 + RADIUS,
    };
    let mut taken: Vec<Area> = points.iter().map(around).chain(obstacles.iter().copied()).collect();
    let mut placed = Vec::with_capacity(points.len());
    for (point, size) in points.iter().zip(sizes) {
        let mut best: Option<(f64, Area)> = None;
        for distance in [RADIUS + 1.0, 16.0, 28.0, 44.0] {
            // Right, left, above, below, then between.
            for (x, y) in
                [(1.0, 0.0), (-1.0, 0.0), (0.0, -1.0), (0.0, 1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, -1.0), (-1.0, 1.0)]
            {
                let middle = (point.0 + x * (distance + size.0 / 2.0), point.1 + y * (distance + size.1 / 2.0));
                let area = Area {
                    left: middle.0 - size.0 / 2.0,
                    top: middle.1 - size.1 / 2.0,
                    right: middle.0 + size.0 / 2.0,
                    bottom: middle.1 + size.1 / 2.0,
                };
                let covered = taken.iter().map(|other| area.overlap(other)).sum::<f64>() + 4.0 * area.outside(frame);
                if best.as_ref().is_none_or(|(least, _)| covered < least - 1e-9) {
                    best = Some((covered, area));
                }
            }
        }
        let Some((_, area)) = best else { continue };
        taken.push(area);
        placed.push(area);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_keeps_order_and_distance() {
        let placed = spread(&[50.0, 10.0, 51.0, 52.0, 11.0, 98.0], 12.0, 0.0, 100.0);
        let mut sorted = placed.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 12.0 - 1e-9), "{placed:?}");
        assert!(sorted[0] >= 0.0 && sorted[5] <= 100.0 + 1e-9);
        assert!(placed[1] < placed[4] && placed[0] < placed[2] && placed[2] < placed[3]);
        assert_eq!(spread(&[], 12.0, 0.0, 1.0), Vec::<f64>::new());
    }

    #[test]
    fn labels_of_a_crowd_keep_apart() {
        let points: Vec<_> = (0..8).map(|i| (200.0 + 9.0 * f64::from(i), 100.0 + 7.0 * f64::from(i % 3))).collect();
        let frame = Area { left: 0.0, top: 0.0, right: 500.0, bottom: 300.0 };
        let placed = beside(&points, &[(50.0, 14.0); 8], &[], &frame);
        for (index, one) in placed.iter().enumerate() {
            assert_eq!(one.outside(&frame), 0.0);
            assert!(placed[..index].iter().all(|other| one.overlap(other) == 0.0), "{index}: {placed:?}");
        }
    }
}
