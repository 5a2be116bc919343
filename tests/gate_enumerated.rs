//! The gate, enumerated: every sequence of inputs for three holders, checked after every step against a model.
//!
//! The model keeps its own record, send by send, and knows nothing of the gate's fields: which send was issued, begun,
//! withdrawn or cut, and when its epoch was first seen superseded. A state is explored once; two paths meet only if both
//! the model's record and everything the gate would print of itself are equal. Permits cannot be copied, so every step
//! replays the way to it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use fencegate::code::Code;
use fencegate::fence::gate::{Answer, Effects, Gate, Permit};
use fencegate::fence::token::Epoch;
use fencegate::fence::view::View;

#[path = "gate_enumerated/model.rs"]
mod model;
use model::{
    Bounds, Expected, Fate, Input, MOST_IN_FLIGHT, MOST_OUT, Model, Seen, Send, claim, holder, order, second,
    terms,
};

/// The gate and the permits that are out.
struct Bench {
    gate: Gate<usize>,
    permits: [Option<Permit>; MOST_OUT],
}

impl Bench {
    fn new() -> Self {
        Self { gate: Gate::default(), permits: [const { None }; MOST_OUT] }
    }

    /// Applies an input that was checked before, for the way to a state.
    fn replay(&mut self, input: Input, before: &Model) {
        match input {
            Input::Observe(seen) => drop(self.gate.observe(seen.view(), second(before.now))),
            Input::Barrier | Input::Second => {}
            Input::Ask { patience } => {
                let answer = self.ask(before, patience);
                let Answer::Admitted(permit, _) = answer else { panic!("{answer:?}") };
                self.permits[before.free().unwrap()] = Some(permit);
            }
            Input::Begin(index) => {
                self.gate.begin(self.permits[index].as_ref().unwrap());
            }
            Input::Unbegin(index) => {
                drop(self.gate.unbegin(self.permits[index].as_ref().unwrap(), order(before.barriers)));
            }
            Input::End(index) => {
                drop(self.gate.end(self.permits[index].take().unwrap(), order(before.barriers)));
            }
            Input::Tick => drop(self.gate.tick(second(before.now))),
        }
    }

    fn ask(&mut self, model: &Model, patience: u8) -> Answer {
        let Seen::Held(term) = model.seen else { panic!("nobody asks") };
        let tag = model.free().unwrap();
        self.gate.ask(&claim(term), order(model.barriers), terms(patience, MOST_IN_FLIGHT), || tag)
    }

    /// Applies one input to both, and checks what the gate answers to it.
    fn step(&mut self, input: Input, model: &mut Model) {
        let before = model.clone();
        let now = second(model.now);
        let mut effects = Effects::default();
        match input {
            Input::Barrier => model.barriers += 1,
            Input::Second => model.now += 1,
            Input::Observe(seen) => {
                model.seen = seen;
                if let Seen::Held(term) = seen {
                    model.highest_seen = model.highest_seen.max(term);
                }
                for (tag, send) in model.out.iter_mut().enumerate() {
                    let Some(send) = send else { continue };
                    if seen == Seen::Held(send.term) || !send.counts() || send.superseded.is_some() {
                        continue;
                    }
                    send.superseded = Some(before.now);
                    if send.fate == Fate::Waiting {
                        send.fate = Fate::Withdrawn;
                        effects.withdrawn.push(tag);
                    }
                }
                if !effects.withdrawn.is_empty() && model.wait_since().is_none() {
                    effects.drained = Some(now);
                }
                assert_eq!(sorted(self.gate.observe(seen.view(), now)), effects);
            }
            Input::Ask { patience } => {
                let Seen::Held(term) = model.seen else { panic!("nobody asks") };
                // What must hold of every admission, said without the model's own prediction.
                assert!(term >= model.highest_admitted, "I2");
                assert!(model.sends().filter(|send| send.counts()).all(|send| send.term == term), "I1, G2");
                assert!(model.sends().all(|send| !send.counts() || send.superseded.is_none()), "G2");
                assert!(model.barriers > model.barriers_at_wait_end, "a proof begun after the drain");
                let answer = self.ask(model, patience);
                let Answer::Admitted(permit, admitted) = answer else { panic!("{answer:?}") };
                assert_eq!((permit.epoch(), &admitted), (Epoch(term.into()), &holder(term)));
                let index = model.free().unwrap();
                self.permits[index] = Some(permit);
                model.out[index] = Some(Send { term, patience, fate: Fate::Waiting, superseded: None });
                model.issued += 1;
                model.highest_admitted = term;
            }
            Input::Begin(index) => {
                let send = model.out[index].as_mut().unwrap();
                assert_eq!(
                    (send.fate, send.superseded),
                    (Fate::Waiting, None),
                    "never begun once superseded"
                );
                send.fate = Fate::Writing;
                assert!(self.gate.begin(self.permits[index].as_ref().unwrap()));
            }
            Input::Unbegin(index) => {
                let superseded = model.out[index].unwrap().superseded.is_some();
                let fate = if superseded { Fate::Withdrawn } else { Fate::Waiting };
                effects.drained = model.release(|model| model.out[index].as_mut().unwrap().fate = fate);
                let answer = self.gate.unbegin(self.permits[index].as_ref().unwrap(), order(before.barriers));
                assert_eq!(answer, (!superseded, effects));
            }
            Input::End(index) => {
                effects.drained = model.release(|model| model.out[index] = None);
                model.ended += 1;
                let permit = self.permits[index].take().unwrap();
                assert_eq!(self.gate.end(permit, order(before.barriers)), effects);
            }
            Input::Tick => {
                for (tag, send) in model.out.iter_mut().enumerate() {
                    if let Some(send) = send
                        && before.is_due(send)
                    {
                        send.fate = Fate::Cut;
                        effects.cut.push(tag);
                    }
                }
                assert_eq!(sorted(self.gate.tick(now)), effects);
            }
        }
        self.check(model);
        // A deadline never moves: whoever is out in both has the one it had.
        for (old, new) in before.out.iter().zip(&model.out) {
            if let (Some(old), Some(new)) = (old, new)
                && old.superseded.is_some()
            {
                assert_eq!((old.superseded, old.patience), (new.superseded, new.patience));
            }
        }
    }

    /// What the gate shows of itself, against the record.
    fn check(&self, model: &Model) {
        let out = model.sends().count();
        assert_eq!(usize::from(model.issued - model.ended), out, "the record itself");
        assert_eq!(self.gate.in_flight(), model.counting(), "I5");
        assert_eq!(self.gate.is_busy(), out > 0);
        let epochs: HashSet<_> = model.sends().filter(|send| send.counts()).map(|send| send.term).collect();
        assert!(epochs.len() <= 1, "I1: {epochs:?}");
        let writing = model.sends().filter(|send| send.fate == Fate::Writing && send.superseded.is_some());
        assert_eq!(self.gate.deadline(), writing.map(Send::end_of_patience).min().map(second));
        if self.gate.view() != &View::Absent {
            assert_eq!(*self.gate.view(), model.seen.view());
        }
    }

    /// Everything that must be refused in this state, and change nothing.
    fn probe(&mut self, model: &Model, key: u64) -> usize {
        let mut refused = 0;
        for term in 1..=3 {
            for proof in [model.barriers_at_wait_end, model.barriers] {
                for most in [0, model.counting(), MOST_IN_FLIGHT + 1] {
                    let Expected::Not(mut expected) = model.expected(term, proof, most) else { continue };
                    if self.gate.view() == &View::Absent {
                        expected = Answer::Refused(Code::UnknownAccount);
                    }
                    let answer = self.gate.ask(&claim(term), order(proof), terms(1, most), || 0);
                    assert_eq!(answer, expected, "{term} with proof {proof}, at most {most}");
                    refused += 1;
                }
            }
        }
        for (send, permit) in model.out.iter().zip(&self.permits) {
            let (Some(send), Some(permit)) = (send, permit) else { continue };
            match send.fate {
                Fate::Withdrawn => {
                    assert!(!self.gate.begin(permit), "withdrawn is for ever");
                    let taken_back = self.gate.unbegin(permit, order(model.barriers));
                    assert_eq!(taken_back, (false, Effects::default()));
                }
                Fate::Cut => assert!(!self.gate.begin(permit), "cut is for ever"),
                Fate::Writing => assert!(self.gate.begin(permit), "begun already"),
                Fate::Waiting => {
                    let taken_back = self.gate.unbegin(permit, order(model.barriers));
                    assert_eq!(taken_back, (true, Effects::default()));
                }
            }
        }
        if !model.sends().any(|send| model.is_due(send)) {
            assert_eq!(self.gate.tick(second(model.now)), Effects::default());
        }
        assert_eq!(self.gate.observe(self.gate.view().clone(), second(model.now)), Effects::default());
        assert_eq!(self.key(model), key, "a refusal changes nothing");
        refused
    }

    /// From every state: when every send has ended, the gate is at rest, and the next holder is admitted.
    fn come_to_rest(mut self, mut model: Model) {
        for index in 0..MOST_OUT {
            if model.out[index].is_some() {
                self.step(Input::End(index), &mut model);
            }
        }
        assert_eq!((self.gate.in_flight(), self.gate.is_busy(), self.gate.deadline()), (0, false, None));
        if let Seen::Held(term) = model.seen
            && term >= model.highest_admitted
        {
            self.step(Input::Barrier, &mut model);
            self.step(Input::Ask { patience: 1 }, &mut model);
            self.step(Input::Begin(0), &mut model);
            self.step(Input::End(0), &mut model);
        }
        assert_eq!(model.issued, model.ended);
    }

    fn key(&self, model: &Model) -> u64 {
        // The long form, because only it prints what a slab holds.
        let printed = format!("{:#?}", self.gate);
        let (before, rest) = printed.split_once("issues: {").unwrap();
        let (issues, after) = rest.split_once("\n    },").unwrap_or(rest.split_once("}").unwrap());
        let mut issues: Vec<_> =
            issues.split(": Issue {").skip(1).map(|issue| issue.split_once("tag:").unwrap().0).collect();
        issues.sort_unstable();
        let mut out = model.out;
        out.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (Model { out, ..model.clone() }, before, issues, after).hash(&mut hasher);
        hasher.finish()
    }
}

/// In which order several sends are told is not promised.
fn sorted(mut effects: Effects<usize>) -> Effects<usize> {
    effects.withdrawn.sort_unstable();
    effects.cut.sort_unstable();
    effects
}

/// A state, and the way to it.
struct Node {
    model: Model,
    parent: usize,
    length: usize,
    input: Option<Input>,
}

fn bench_at(nodes: &[Node], index: usize) -> Bench {
    let mut way = Vec::new();
    let mut at = index;
    while let Some(input) = nodes[at].input {
        at = nodes[at].parent;
        way.push((input, &nodes[at].model));
    }
    let mut bench = Bench::new();
    for (input, before) in way.into_iter().rev() {
        bench.replay(input, before);
    }
    bench
}

/// How much an enumeration met: where it is little, it proves less than it says.
#[derive(Debug, Default)]
struct Met {
    states: usize,
    steps: usize,
    /// Asks that had to be refused or to wait, each in its state.
    refused: usize,
    longest_way: usize,
    /// States in which a holder waits for a send that is cut and has not ended.
    cut_and_waited_for: usize,
    /// States in which an epoch is back while its own sends from before are waited for.
    back_while_draining: usize,
    /// States in which the third holder was admitted with the last permit.
    third_holder: usize,
}

impl Met {
    fn count(&mut self, model: &Model, bounds: Bounds) {
        if let Seen::Held(term) = model.seen
            && model.wait_since().is_some()
        {
            self.cut_and_waited_for += usize::from(model.sends().any(|send| send.fate == Fate::Cut));
            let back = model.sends().any(|send| send.blocks() && send.term == term);
            self.back_while_draining += usize::from(back);
        }
        self.third_holder += usize::from(model.highest_admitted == 3 && model.issued == bounds.issued);
    }
}

fn enumerate(bounds: Bounds) -> Met {
    let mut nodes = vec![Node { model: Model::new(), parent: 0, length: 0, input: None }];
    let mut known = HashSet::from([Bench::new().key(&nodes[0].model)]);
    let mut met = Met::default();
    let mut next = 0;
    while next < nodes.len() {
        for input in nodes[next].model.inputs(bounds) {
            let mut model = nodes[next].model.clone();
            let mut bench = bench_at(&nodes, next);
            bench.step(input, &mut model);
            met.steps += 1;
            let key = bench.key(&model);
            if !known.insert(key) {
                continue;
            }
            met.refused += bench.probe(&model, key);
            met.count(&model, bounds);
            bench.come_to_rest(model.clone());
            let length = nodes[next].length + 1;
            nodes.push(Node { model, parent: next, length, input: Some(input) });
        }
        next += 1;
    }
    met.states = nodes.len();
    met.longest_way = nodes[next - 1].length;
    met
}

#[test]
fn every_sequence_of_inputs_keeps_one_live_epoch_and_ordered_handovers() {
    let met = enumerate(Bounds { issued: 4, last_second: 1, goes_back: false });
    assert!(met.states > 54_000 && met.steps > 290_000 && met.refused > 960_000, "{met:?}");
    assert!(met.longest_way > 24 && met.third_holder > 12_000, "{met:?}");
    assert!(met.cut_and_waited_for > 800 && met.back_while_draining > 3_900, "{met:?}");
}

#[test]
fn every_sequence_of_inputs_with_time_cuts_each_send_at_its_own_deadline() {
    let met = enumerate(Bounds { issued: 3, last_second: 2, goes_back: false });
    assert!(met.states > 49_000 && met.steps > 270_000 && met.refused > 880_000, "{met:?}");
    assert!(met.longest_way > 18 && met.third_holder > 16_000, "{met:?}");
    assert!(met.cut_and_waited_for > 1_500 && met.back_while_draining > 3_900, "{met:?}");
}

#[test]
fn views_that_go_back_never_let_admitted_epochs_decrease() {
    let met = enumerate(Bounds { issued: 3, last_second: 1, goes_back: true });
    assert!(met.states > 35_000 && met.steps > 240_000 && met.refused > 630_000, "{met:?}");
}
