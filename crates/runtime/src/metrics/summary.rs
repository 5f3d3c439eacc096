//! Quantiles over the last ten minutes, as Go's summaries show them: five windows of two minutes, the oldest dropped as time
//! goes on, sum and count kept for ever.
//!
//! Samples are kept as they are, so quantiles are exact where Go's are within one per cent; a window that grows beyond
//! bounds is thinned evenly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(120);
const WINDOWS: usize = 5;
/// 64 KiB of samples per window.
const MAX_SAMPLES: usize = 8192;

pub(super) struct SlidingQuantiles {
    quantiles: Arc<[f64]>,
    windows: VecDeque<Window>,
    window_ends: Option<Instant>,
    sum: f64,
    count: u64,
}

#[derive(Default)]
struct Window {
    samples: Vec<f64>,
    /// One in this many observations is kept.
    stride: u64,
    seen: u64,
}

impl SlidingQuantiles {
    pub(super) fn new(quantiles: Arc<[f64]>) -> Self {
        Self {
            quantiles,
            windows: VecDeque::from([Window::default()]),
            window_ends: None,
            sum: 0.0,
            count: 0,
        }
    }

    pub(super) fn observe(&mut self, value: f64, now: Instant) {
        self.slide(now);
        if let Some(window) = self.windows.back_mut() {
            window.observe(value);
        }
        self.sum += value;
        self.count += 1;
    }

    /// The quantiles (NaN without recent samples), the sum and the count.
    pub(super) fn read(&mut self, now: Instant) -> (Vec<(f64, f64)>, f64, u64) {
        self.slide(now);
        let mut samples: Vec<f64> =
            self.windows.iter().flat_map(|window| window.samples.iter().copied()).collect();
        samples.sort_by(f64::total_cmp);
        let at = |quantile: f64| {
            let rank = (quantile * samples.len() as f64).ceil() as usize;
            samples.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
        };
        (self.quantiles.iter().map(|quantile| (*quantile, at(*quantile))).collect(), self.sum, self.count)
    }

    fn slide(&mut self, now: Instant) {
        let mut ends = *self.window_ends.get_or_insert(now + WINDOW);
        if now.saturating_duration_since(ends) > WINDOW * WINDOWS as u32 {
            // Nothing that is kept is recent any more.
            self.windows.clear();
            self.windows.push_back(Window::default());
            ends = now + WINDOW;
        }
        while ends <= now {
            self.windows.push_back(Window::default());
            if self.windows.len() > WINDOWS {
                self.windows.pop_front();
            }
            ends += WINDOW;
        }
        self.window_ends = Some(ends);
    }
}

impl Window {
    fn observe(&mut self, value: f64) {
        let stride = self.stride.max(1);
        if self.seen.is_multiple_of(stride) {
            self.samples.push(value);
        }
        self.seen += 1;
        if self.samples.len() > MAX_SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride = stride * 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(summary: &mut SlidingQuantiles, now: Instant) -> Vec<f64> {
        summary.read(now).0.into_iter().map(|(_, value)| value).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn quantiles_are_of_the_last_ten_minutes_and_totals_of_all_time() {
        let start = Instant::now();
        let mut summary = SlidingQuantiles::new(Arc::from([0.0, 0.5, 0.99, 1.0]));
        assert!(read(&mut summary, start)[1].is_nan());
        for value in 1..=100 {
            summary.observe(f64::from(value), start);
        }
        assert_eq!(read(&mut summary, start + WINDOW), [1.0, 50.0, 99.0, 100.0]);
        summary.observe(1000.0, start + WINDOW * 4);
        assert_eq!(read(&mut summary, start + WINDOW * 4)[3], 1000.0);
        assert_eq!(read(&mut summary, start + WINDOW * 6), [1000.0; 4], "the first hundred are too old");
        let (quantiles, sum, count) = summary.read(start + WINDOW * 600);
        assert!(quantiles[0].1.is_nan());
        assert_eq!((sum, count), (6050.0, 101));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_thinned_evenly() {
        let start = Instant::now();
        let mut summary = SlidingQuantiles::new(Arc::from([0.5]));
        for value in 0..100_000 {
            summary.observe(f64::from(value), start);
        }
        assert!(summary.windows[0].samples.len() <= MAX_SAMPLES);
        let median = read(&mut summary, start)[0];
        assert!((median - 50_000.0).abs() < 1000.0, "{median}");
    }
}
