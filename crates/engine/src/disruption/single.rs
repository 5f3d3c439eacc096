//! One node at a time: the first that can go for a cheaper one, or for none.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::candidate::Candidate;
use super::command::Command;
use super::method::{Method, SINGLE_NODE_TIMEOUT};
use super::reasons::Why;
use super::simulate::SimulationError;
use super::workbench::Workbench;
use super::{Judge, Search};
use crate::labels::Text;

/// What a probe of one node says.
type Answer = Result<Result<Command, Why>, SimulationError>;

/// So many nodes are tried one after the other before threads are worth their own copy of the cluster.
const ALONE: usize = 32;
/// So many must be left for that.
const WORTH_THREADS: usize = 256;

impl<'s> Judge<'s> {
    /// What becomes of the candidate alone.
    fn try_single(&self, bench: &mut Workbench<'s>, candidate: &Arc<Candidate>) -> Answer {
        if let Some(score) = self.scales.hopeless(&self.census, candidate) {
            return Ok(Err(Why::NotWorthIt { pool: candidate.node_pool.clone(), score, at_best: true }));
        }
        let alone = std::slice::from_ref(candidate);
        let answer = self.consolidation(bench, Method::SingleNodeConsolidation, alone)?;
        Ok(answer.and_then(|command| self.approve(command).map_err(|(_, why)| why)))
    }
}

impl<'s> Search<'_, 's> {
    pub(super) fn single(&mut self) {
        let order = self.interleaved();
        let mut unseen: BTreeSet<Text> = order.iter().map(|c| c.node_pool.clone()).collect();
        let mut held_back = false;
        let mut tried: Vec<Arc<Candidate>> = Vec::with_capacity(order.len());
        for candidate in order {
            if self.purse.left(&candidate.node_pool) == 0 {
                unseen.remove(&candidate.node_pool);
                self.over_budget(&candidate);
                held_back = true;
            } else {
                tried.push(candidate);
            }
        }
        let answers = self.answers(&tried);
        let complete = answers.len() == tried.len();
        self.outcome.evaluated = answers.len();
        for (candidate, answer) in tried.iter().zip(answers) {
            unseen.remove(&candidate.node_pool);
            match answer {
                // Upstream logs it and goes on; nothing can be simulated for the next one either.
                Err(SimulationError::NoNodePools) => self.stays(candidate, Why::NoPools),
                Ok(Err(why)) => self.stays(candidate, why),
                Ok(Ok(command)) => {
                    self.outcome.commands.push(command);
                    return;
                }
            }
        }
        self.outcome.timed_out = !complete;
        self.outcome.consolidated = complete && !held_back;
        self.outcome.unseen_pools = Some(unseen);
    }

    /// The answers for the candidates in order, up to and including the first command; fewer when time runs out.
    fn answers(&mut self, candidates: &[Arc<Candidate>]) -> Vec<Answer> {
        let deadline = self.elapsed().saturating_add(SINGLE_NODE_TIMEOUT);
        let mut answers = Vec::with_capacity(candidates.len());
        let threads = NonZeroUsize::new(self.judge.options.threads).map_or(1, NonZeroUsize::get);
        for (number, candidate) in candidates.iter().enumerate() {
            if self.elapsed() > deadline {
                return answers;
            }
            if threads > 1 && number >= ALONE && candidates.len() - number >= WORTH_THREADS {
                answers.extend(self.answers_of_threads(&candidates[number..], threads, deadline));
                return answers;
            }
            let answer = self.judge.try_single(self.bench, candidate);
            let found = matches!(answer, Ok(Ok(_)));
            answers.push(answer);
            if found {
                break;
            }
        }
        answers
    }

    /// The same by several threads, each with its own copy of the cluster. They take candidates in order, and nobody goes beyond
    /// the first command found, so the answers up to it are those one thread would have given.
    fn answers_of_threads(
        &mut self,
        candidates: &[Arc<Candidate>],
        threads: usize,
        deadline: std::time::Duration,
    ) -> Vec<Answer> {
        let next = AtomicUsize::new(0);
        let first_found = AtomicUsize::new(usize::MAX);
        let late = AtomicBool::new(false);
        let slots: Vec<Mutex<Option<Answer>>> = candidates.iter().map(|_| Mutex::new(None)).collect();
        let (judge, stopwatch) = (self.judge, self.stopwatch);
        let work = |bench: &mut Workbench<'s>| loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= candidates.len() || number > first_found.load(Ordering::Relaxed) {
                break;
            }
            if late.load(Ordering::Relaxed) || stopwatch.is_some_and(|s| s() > deadline) {
                late.store(true, Ordering::Relaxed);
                break;
            }
            let answer = judge.try_single(bench, &candidates[number]);
            if matches!(answer, Ok(Ok(_))) {
                first_found.fetch_min(number, Ordering::Relaxed);
            }
            *slots[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let (options, roster) = (judge.options, self.roster.clone());
                scope.spawn(move || work(&mut Workbench::new(options, roster)));
            }
            work(self.bench);
        });
        let given = slots.into_iter().map(|s| s.into_inner().unwrap_or_else(PoisonError::into_inner));
        let last = first_found.into_inner().saturating_add(1);
        given.take(last).map_while(|answer| answer).collect()
    }

    /// The pools take turns, those an earlier pass did not come to first; within a pool by savings.
    fn interleaved(&self) -> Vec<Arc<Candidate>> {
        let mut by_pool: BTreeMap<Text, Vec<Arc<Candidate>>> = BTreeMap::new();
        for candidate in self.by_savings() {
            by_pool.entry(candidate.node_pool.clone()).or_default().push(candidate);
        }
        let unseen = &self.judge.memory.unseen_pools;
        let turns: Vec<&Text> =
            unseen.iter().chain(by_pool.keys().filter(|pool| !unseen.contains(*pool))).collect();
        let longest = by_pool.values().map(Vec::len).max().unwrap_or(0);
        let mut order = Vec::with_capacity(self.candidates.len());
        for round in 0..longest {
            for pool in &turns {
                order.extend(by_pool.get(*pool).and_then(|candidates| candidates.get(round)).cloned());
            }
        }
        order
    }
}
