//! Go's `sort.Slice`, decision for decision.
//!
//! Upstream re-sorts its in-flight NodeClaims by pod count before every pod, and the order among equals decides where the pod goes.
//! Go sorts with pattern-defeating quicksort, which is not stable but is deterministic: to agree on more than twelve
//! claims we must take the same steps. [`sort`] takes them all; [`ClaimOrder`] takes a shortcut to the same result
//! when only one claim has changed since the last time, which is nearly always.

/// Sorts `data` exactly as Go's `sort.Slice` with this `less` would.
pub(crate) fn sort<T: Copy>(data: &mut [T], less: impl Fn(T, T) -> bool) {
    let limit = usize::BITS - data.len().leading_zeros();
    Sorter { data, less }.pdqsort(limit);
}

/// Longest run sorted by plain insertion.
const MAX_INSERTION: usize = 12;
/// From this length on a nearly sorted run is repaired by shifting.
const SHORTEST_SHIFTING: usize = 50;

#[derive(Clone, Copy, PartialEq)]
enum Hint {
    Unknown,
    Increasing,
    Decreasing,
}

/// The order in which in-flight claims are tried: fewest pods first, ties as Go's repeated sorting leaves them.
#[derive(Default)]
pub(crate) struct ClaimOrder {
    /// Claim ids in order.
    order: Vec<u32>,
    /// Pods per claim id.
    pods: Vec<u32>,
    /// Per claim id, where it stands among those with as many pods: smaller comes first.
    ties: Vec<i64>,
    /// Below and above every tie given so far.
    low: i64,
    high: i64,
    /// Position of the one claim changed since the order was last settled.
    changed: Option<usize>,
}

impl ClaimOrder {
    /// The claims in the order of the last [`ClaimOrder::settle`].
    pub(crate) fn claims(&self) -> &[u32] {
        &self.order
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds claim number `len()` with its first pod, at the end.
    pub(crate) fn push(&mut self) {
        self.settle();
        self.changed = Some(self.order.len());
        self.order.push(self.order.len() as u32);
        self.pods.push(1);
        self.ties.push(self.high);
        self.high += 1;
    }

    /// What the settled order is ascending in.
    pub(crate) fn rank(&self, claim: u32) -> (u32, i64) {
        (self.pods[claim as usize], self.ties[claim as usize])
    }

    /// Where the claim stands in the settled order.
    pub(crate) fn position(&self, claim: u32) -> usize {
        let rank = self.rank(claim);
        self.order.partition_point(|c| self.rank(*c) < rank)
    }

    /// One more pod for the claim at `position`.
    pub(crate) fn bump(&mut self, position: usize) {
        self.settle();
        let claim = self.order[position] as usize;
        self.pods[claim] += 1;
        // It will stand before all that have as many already.
        self.low -= 1;
        self.ties[claim] = self.low;
        self.changed = Some(position);
    }

    /// What `sort.Slice` makes of the list as it stands.
    pub(crate) fn settle(&mut self) {
        let Some(at) = self.changed.take() else { return };
        let pods = &self.pods;
        let less = |a: u32, b: u32| pods[a as usize] < pods[b as usize];
        let len = self.order.len();
        let shifts = len <= MAX_INSERTION || {
            // A nearly sorted list whose samples look sorted is repaired by shifting the one claim out of place.
            let sorter = Sorter { data: &mut self.order, less };
            len >= SHORTEST_SHIFTING && sorter.choose_pivot(0, len).1 == Hint::Increasing
        };
        if !shifts {
            sort(&mut self.order, less);
            for (position, claim) in self.order.iter().enumerate() {
                self.ties[*claim as usize] = position as i64;
            }
            (self.low, self.high) = (0, len as i64);
            return;
        }
        let moved = self.order[at];
        let key = pods[moved as usize];
        // Everything but the moved claim is in order, so its place is found by bisection.
        if at + 1 < len && pods[self.order[at + 1] as usize] < key {
            let step = self.order[at + 1..].partition_point(|c| pods[*c as usize] < key);
            self.order[at..=at + step].rotate_left(1);
        } else if at > 0 && key < pods[self.order[at - 1] as usize] {
            let to = self.order[..at].partition_point(|c| pods[*c as usize] <= key);
            self.order[to..=at].rotate_right(1);
        }
    }
}

struct Sorter<'a, T, F> {
    data: &'a mut [T],
    less: F,
}

impl<T: Copy, F: Fn(T, T) -> bool> Sorter<'_, T, F> {
    fn lt(&self, i: usize, j: usize) -> bool {
        (self.less)(self.data[i], self.data[j])
    }

    fn pdqsort(&mut self, limit: u32) {
        self.run(0, self.data.len(), limit);
    }

    fn run(&mut self, mut a: usize, mut b: usize, mut limit: u32) {
        let mut was_balanced = true;
        let mut was_partitioned = true;
        loop {
            let length = b - a;
            if length <= MAX_INSERTION {
                self.insertion(a, b);
                return;
            }
            if limit == 0 {
                self.heap(a, b);
                return;
            }
            if !was_balanced {
                self.break_patterns(a, b);
                limit -= 1;
            }
            let (mut pivot, mut hint) = self.choose_pivot(a, b);
            if hint == Hint::Decreasing {
                self.data[a..b].reverse();
                pivot = (b - 1) - (pivot - a);
                hint = Hint::Increasing;
            }
            if was_balanced && was_partitioned && hint == Hint::Increasing && self.partial_insertion(a, b) {
                return;
            }
            if a > 0 && !self.lt(a - 1, pivot) {
                a = self.partition_equal(a, b, pivot);
                continue;
            }
            let (mid, already_partitioned) = self.partition(a, b, pivot);
            was_partitioned = already_partitioned;
            let (left, right) = (mid - a, b - mid);
            let balance_threshold = length / 8;
            if left < right {
                was_balanced = left >= balance_threshold;
                self.run(a, mid, limit);
                a = mid + 1;
            } else {
                was_balanced = right >= balance_threshold;
                self.run(mid + 1, b, limit);
                b = mid;
            }
        }
    }

    fn insertion(&mut self, a: usize, b: usize) {
        for i in a + 1..b {
            let mut j = i;
            while j > a && self.lt(j, j - 1) {
                self.data.swap(j, j - 1);
                j -= 1;
            }
        }
    }

    fn sift_down(&mut self, lo: usize, hi: usize, first: usize) {
        let mut root = lo;
        loop {
            let mut child = 2 * root + 1;
            if child >= hi {
                return;
            }
            if child + 1 < hi && self.lt(first + child, first + child + 1) {
                child += 1;
            }
            if !self.lt(first + root, first + child) {
                return;
            }
            self.data.swap(first + root, first + child);
            root = child;
        }
    }

    fn heap(&mut self, a: usize, b: usize) {
        let hi = b - a;
        for i in (0..hi.div_ceil(2)).rev() {
            self.sift_down(i, hi, a);
        }
        for i in (0..hi).rev() {
            self.data.swap(a, a + i);
            self.sift_down(0, i, a);
        }
    }

    fn break_patterns(&mut self, a: usize, b: usize) {
        let length = b - a;
        if length < 8 {
            return;
        }
        let mut random = length as u64;
        let modulus = 1usize << (usize::BITS - length.leading_zeros());
        let idx = a + (length / 4) * 2 - 1;
        for i in 0..3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut other = random as usize & (modulus - 1);
            if other >= length {
                other -= length;
            }
            self.data.swap(idx + i, a + other);
        }
    }

    fn choose_pivot(&self, a: usize, b: usize) -> (usize, Hint) {
        const SHORTEST_NINTHER: usize = 50;
        const MAX_SWAPS: usize = 4 * 3;
        let length = b - a;
        let mut swaps = 0;
        let (mut i, mut j, mut k) = (a + length / 4, a + length / 4 * 2, a + length / 4 * 3);
        if length >= 8 {
            if length >= SHORTEST_NINTHER {
                i = self.median_adjacent(i, &mut swaps);
                j = self.median_adjacent(j, &mut swaps);
                k = self.median_adjacent(k, &mut swaps);
            }
            j = self.median(i, j, k, &mut swaps);
        }
        match swaps {
            0 => (j, Hint::Increasing),
            MAX_SWAPS => (j, Hint::Decreasing),
            _ => (j, Hint::Unknown),
        }
    }

    fn order2(&self, a: usize, b: usize, swaps: &mut usize) -> (usize, usize) {
        if self.lt(b, a) {
            *swaps += 1;
            return (b, a);
        }
        (a, b)
    }

    fn median(&self, a: usize, b: usize, c: usize, swaps: &mut usize) -> usize {
        let (a, b) = self.order2(a, b, swaps);
        let (b, _) = self.order2(b, c, swaps);
        let (_, b) = self.order2(a, b, swaps);
        b
    }

    fn median_adjacent(&self, a: usize, swaps: &mut usize) -> usize {
        self.median(a - 1, a, a + 1, swaps)
    }

    fn partial_insertion(&mut self, a: usize, b: usize) -> bool {
        const MAX_STEPS: usize = 5;
        let mut i = a + 1;
        for _ in 0..MAX_STEPS {
            while i < b && !self.lt(i, i - 1) {
                i += 1;
            }
            if i == b {
                return true;
            }
            if b - a < SHORTEST_SHIFTING {
                return false;
            }
            self.data.swap(i, i - 1);
            if i - a >= 2 {
                for j in (1..i).rev() {
                    if !self.lt(j, j - 1) {
                        break;
                    }
                    self.data.swap(j, j - 1);
                }
            }
            if b - i >= 2 {
                for j in i + 1..b {
                    if !self.lt(j, j - 1) {
                        break;
                    }
                    self.data.swap(j, j - 1);
                }
            }
        }
        false
    }

    fn partition(&mut self, a: usize, b: usize, pivot: usize) -> (usize, bool) {
        self.data.swap(a, pivot);
        let (mut i, mut j) = (a + 1, b - 1);
        while i <= j && self.lt(i, a) {
            i += 1;
        }
        while i <= j && !self.lt(j, a) {
            j -= 1;
        }
        if i > j {
            self.data.swap(j, a);
            return (j, true);
        }
        self.data.swap(i, j);
        i += 1;
        j -= 1;
        loop {
            while i <= j && self.lt(i, a) {
                i += 1;
            }
            while i <= j && !self.lt(j, a) {
                j -= 1;
            }
            if i > j {
                break;
            }
            self.data.swap(i, j);
            i += 1;
            j -= 1;
        }
        self.data.swap(j, a);
        (j, false)
    }

    fn partition_equal(&mut self, a: usize, b: usize, pivot: usize) -> usize {
        self.data.swap(a, pivot);
        let (mut i, mut j) = (a + 1, b - 1);
        loop {
            while i <= j && !self.lt(a, i) {
                i += 1;
            }
            while i <= j && self.lt(a, j) {
                j -= 1;
            }
            if i > j {
                break;
            }
            self.data.swap(i, j);
            i += 1;
            j -= 1;
        }
        i
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Hashes of the permutations Go 1.26's `sort.Slice` makes of pseudo-random keys below `spread`.
    #[test]
    fn the_order_among_equals_is_the_one_go_leaves() {
        for (len, spread, want) in GO_PERMUTATIONS {
            let mut state = 88_172_645_463_325_252 + len * 31 + spread;
            let keys: Vec<u64> = (0..len).map(|_| next(&mut state) % spread).collect();
            let mut order: Vec<u32> = (0..len as u32).collect();
            sort(&mut order, |a, b| keys[a as usize] < keys[b as usize]);
            let hash = order.iter().fold(14_695_981_039_346_656_037u64, |h, v| {
                (h ^ u64::from(*v)).wrapping_mul(1_099_511_628_211)
            });
            assert_eq!(hash, want, "{len} keys below {spread}");
        }
    }

    #[test]
    fn settling_one_change_equals_sorting_everything() {
        let mut state = 7;
        for round in 0..40 {
            let mut order = ClaimOrder::default();
            let mut literal: Vec<u32> = Vec::new();
            let mut pods: Vec<u32> = Vec::new();
            for _ in 0..400 {
                order.settle();
                sort(&mut literal, |a, b| pods[a as usize] < pods[b as usize]);
                assert_eq!(order.claims(), literal, "round {round}, {} claims", literal.len());
                assert!(literal.iter().enumerate().all(|(at, claim)| order.position(*claim) == at));
                let roll = next(&mut state);
                if literal.is_empty() || roll.is_multiple_of(2 + round % 5) {
                    literal.push(literal.len() as u32);
                    pods.push(1);
                    order.push();
                } else {
                    let position = (roll >> 8) as usize % literal.len().min(1 + round as usize * 4);
                    pods[literal[position] as usize] += 1;
                    order.bump(position);
                }
            }
        }
    }

    const GO_PERMUTATIONS: [(u64, u64, u64); 17] = [
        (5, 2, 3708964778940489647),
        (12, 3, 10386378925492035537),
        (13, 2, 6800746041855973675),
        (20, 3, 11533311432969915487),
        (24, 4, 5335692027058703111),
        (40, 1000, 2583236493892550297),
        (49, 2, 17124374441479726657),
        (50, 2, 12252986135568097278),
        (55, 5, 3039268287406463254),
        (60, 2, 6503611816847822307),
        (100, 3, 7086707976043894073),
        (100, 100000, 7873087960302162689),
        (257, 7, 17279370568428214363),
        (1000, 2, 18163157493848247037),
        (1000, 50, 13971083857003945911),
        (3000, 4, 5359697422787881485),
        (5000, 1000000, 17036399627412657383),
    ];
}
