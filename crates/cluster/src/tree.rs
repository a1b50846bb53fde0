//! Sums whose order depends on the number of addends alone, not on the ranks that hold them.

use std::ops::Range;

use crate::ClusterError;

/// A binary tree over `leaves` addends that are dealt to `ranks` ranks in contiguous blocks.
///
/// The left part of a node holds the largest power of two that is less than its leaves, so that with a power of two of
/// leaves the tree is balanced. The sum of a node is that of its left part plus that of its right part, whoever computes it:
/// the same bits for any number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumTree {
    leaves: usize,
    ranks: usize,
}

/// Sums of neighbouring addends of one rank, added up as far as the tree allows.
#[derive(Debug)]
pub struct PartialSums<T> {
    tree: SumTree,
    sums: Vec<(Range<usize>, T)>,
}

impl SumTree {
    /// # Panics
    /// Without ranks, or with fewer leaves than ranks.
    pub fn new(leaves: usize, ranks: usize) -> Self {
        assert!((1..=leaves).contains(&ranks), "{leaves} addends for {ranks} ranks");
        Self { leaves, ranks }
    }

    /// Number of addends.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// The addends of a rank.
    pub fn block(&self, rank: usize) -> Range<usize> {
        let border = |rank: usize| rank * self.leaves / self.ranks;
        border(rank)..border(rank + 1)
    }

    /// The rank that has an addend.
    pub fn owner(&self, leaf: usize) -> usize {
        (0..self.ranks).find(|rank| self.block(*rank).contains(&leaf)).expect("a leaf of the tree")
    }

    /// No sums yet.
    pub fn start<T>(&self) -> PartialSums<T> {
        PartialSums { tree: *self, sums: Vec::new() }
    }

    /// Whether the tree has a node whose parts meet at `middle`.
    fn has_node(&self, start: usize, middle: usize, end: usize) -> bool {
        let mut node = 0..self.leaves;
        while node.len() > 1 {
            let at = split(&node);
            if (node.start, at, node.end) == (start, middle, end) {
                return true;
            }
            node = if start >= at { at..node.end } else { node.start..at };
        }
        false
    }

    /// Where the sum of a node is computed if that of all is wanted on rank `root`: there, if it has a part of it.
    fn place(&self, node: &Range<usize>, root: usize) -> usize {
        if overlaps(node, &self.block(root)) { root } else { self.owner(node.start) }
    }

    /// The sum of all addends on rank `root`, and `None` on all others, of what this `rank` `held` of them. One message goes
    /// from rank to rank wherever two parts of a node are not on the same one.
    ///
    /// # Errors
    /// Those of `link`.
    pub fn sum<T>(&self, rank: usize, root: usize, held: PartialSums<T>, link: &mut impl Link<T>) -> Linked<T> {
        let mut held = held.sums;
        self.sum_of(&(0..self.leaves), rank, root, &mut held, link)
    }

    fn sum_of<T>(
        &self,
        node: &Range<usize>,
        rank: usize,
        root: usize,
        held: &mut Vec<(Range<usize>, T)>,
        link: &mut impl Link<T>,
    ) -> Linked<T> {
        let own = self.block(rank);
        if !overlaps(node, &own) {
            return Ok(None);
        }
        if own.start <= node.start && node.end <= own.end {
            let at = held.iter().position(|(range, _)| range == node).expect("all addends of a block are summed up");
            return Ok(Some(held.swap_remove(at).1));
        }
        let at = split(node);
        let parts = [node.start..at, at..node.end];
        let place = self.place(node, root);
        let mut sums = [None, None];
        for (part, sum) in parts.iter().zip(&mut sums) {
            *sum = self.sum_of(part, rank, root, held, link)?;
        }
        for (part, sum) in parts.iter().zip(&mut sums) {
            let from = self.place(part, root);
            if from == rank && place != rank {
                link.send(place, sum.take().expect("computed here"))?;
            } else if from != rank && place == rank {
                *sum = Some(link.receive(from)?);
            }
        }
        match sums {
            [Some(left), Some(right)] => Ok(Some(link.add(left, right))),
            _ => Ok(None),
        }
    }
}

/// How sums get to another rank, and how two of them are added.
pub trait Link<T> {
    /// Sends a sum; does not wait for its receiver.
    ///
    /// # Errors
    /// A rank that has left the job.
    fn send(&mut self, to: usize, sum: T) -> Result<(), ClusterError>;

    /// The next sum that a rank has sent to this one.
    ///
    /// # Errors
    /// A rank that has left the job.
    fn receive(&mut self, from: usize) -> Result<T, ClusterError>;

    /// Adds two sums.
    fn add(&mut self, left: T, right: T) -> T;
}

/// A sum on the rank that it is for.
pub type Linked<T> = Result<Option<T>, ClusterError>;

impl<T> PartialSums<T> {
    /// With the next addend of the block, number `leaf` of all.
    pub fn push(&mut self, leaf: usize, value: T, mut add: impl FnMut(T, T) -> T) {
        self.sums.push((leaf..leaf + 1, value));
        while let [.., (left, _), (right, _)] = &self.sums[..] {
            if left.end != right.start || !self.tree.has_node(left.start, left.end, right.end) {
                break;
            }
            let ((right, addend), (left, sum)) = (self.sums.pop().expect("two"), self.sums.pop().expect("two"));
            self.sums.push((left.start..right.end, add(sum, addend)));
        }
    }

    /// Sums of another kind, as of a part that is taken from each.
    pub fn map_mut<U>(&mut self, mut part: impl FnMut(&mut T) -> U) -> PartialSums<U> {
        let sums = self.sums.iter_mut().map(|(range, sum)| (range.clone(), part(sum))).collect();
        PartialSums { tree: self.tree, sums }
    }
}

/// Where the two parts of a node meet.
fn split(node: &Range<usize>) -> usize {
    node.start + (1 << (node.len() - 1).ilog2())
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Threads};

    /// Sums as the texts of their terms.
    struct Texts<'a>(&'a dyn Communicator);

    fn join(left: &str, right: &str) -> String {
        format!("({left} {right})")
    }

    impl Link<String> for Texts<'_> {
        fn send(&mut self, to: usize, sum: String) -> Result<(), ClusterError> {
            self.0.send(to, 5, sum.into_bytes())
        }

        fn receive(&mut self, from: usize) -> Result<String, ClusterError> {
            Ok(String::from_utf8(self.0.receive(from, 5)?).unwrap())
        }

        fn add(&mut self, left: String, right: String) -> String {
            join(&left, &right)
        }
    }

    /// The sum on rank `root`, and the messages of all ranks.
    fn summed(leaves: usize, ranks: usize, root: usize) -> (String, usize) {
        let tree = SumTree::new(leaves, ranks);
        let seen = Threads::run(ranks, |cluster| {
            let mut held = tree.start();
            tree.block(cluster.rank()).for_each(|leaf| held.push(leaf, leaf.to_string(), |a, b| join(&a, &b)));
            let sum = tree.sum(cluster.rank(), root, held, &mut Texts(&*cluster)).unwrap();
            (sum, usize::from(cluster.bytes_sent() > 0))
        });
        let others = seen.iter().enumerate().filter(|(rank, _)| *rank != root);
        assert!(others.clone().all(|(_, (sum, _))| sum.is_none()));
        (seen[root].0.clone().unwrap(), others.map(|(_, (_, sent))| sent).sum())
    }

    #[test]
    fn the_order_is_that_of_the_tree_on_any_number_of_ranks() {
        assert_eq!(summed(4, 1, 0).0, "((0 1) (2 3))");
        assert_eq!(summed(6, 1, 0).0, "(((0 1) (2 3)) (4 5))");
        assert_eq!(summed(7, 1, 0).0, "(((0 1) (2 3)) ((4 5) 6))");
        for leaves in 1..10 {
            let want = summed(leaves, 1, 0).0;
            for ranks in 1..=leaves {
                for root in 0..ranks {
                    assert_eq!(summed(leaves, ranks, root).0, want, "{leaves} addends, {ranks} ranks, root {root}");
                }
            }
        }
    }

    #[test]
    fn blocks_hold_every_addend_once() {
        for (leaves, ranks) in [(4, 2), (7, 3), (5, 5), (9, 2)] {
            let tree = SumTree::new(leaves, ranks);
            let all: Vec<usize> = (0..ranks).flat_map(|rank| tree.block(rank)).collect();
            assert_eq!(all, (0..leaves).collect::<Vec<_>>());
            assert!((0..leaves).all(|leaf| tree.block(tree.owner(leaf)).contains(&leaf)));
        }
    }

    /// Every rank but the root sends one sum, so that none is sent in vain.
    #[test]
    fn a_balanced_sum_takes_one_message_of_each_other_rank() {
        for root in 0..4 {
            assert_eq!(summed(8, 4, root).1, 3);
        }
    }
}
