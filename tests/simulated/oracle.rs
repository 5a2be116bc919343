//! The independent record: what the service committed, what was asked, what reached the sender; and what must hold of it.
//!
//! It is told what the world did and what callers and the sender saw. It never looks into the gateway, and it judges by its
//! own words, not by the gateway's functions. The first thing that does not hold is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fencegate::clock::{Clock, Moment};
use fencegate::code::Code;
use fencegate::fence::token::Claim;

use super::service::{Active, Tree};

/// What the gateway promised in its configuration.
#[derive(Clone, Copy, Debug)]
pub struct Promises {
    pub max_staleness: Duration,
    pub park_timeout: Duration,
    pub most_in_flight: usize,
}

/// The truth about an account, from one commit to the next.
struct Span {
    until: Option<(u64, Moment)>,
    /// What a claim deserves, and for whom.
    holder: Result<Active, Code>,
}

/// One request.
struct Ask {
    account: usize,
    claim: Claim,
    patience: Duration,
    /// When all of its body was in: it is to be judged by what held then or later.
    arrived: (u64, Moment),
    epoch: Option<i64>,
    stage: Stage,
    written: u32,
    answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Parked,
    /// It has a permit.
    Permitted,
    /// The sender has seen some of it.
    Sent,
    Ended,
}

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Answered,
    /// The sender failed, or took too long.
    Failed,
    /// The gateway cut it, and the sender has seen that.
    Cut,
}

/// The record.
pub struct Oracle {
    clock: Clock,
    promises: Promises,
    /// Numbers everything that is told, in its order.
    stamp: u64,
    truth: Vec<Vec<Span>>,
    asks: BTreeMap<u64, Ask>,
    /// The highest epoch admitted in this history.
    highest: Vec<Option<i64>>,
    /// The service was restored from a copy, and the gateway may not know.
    restored: bool,
    wrong: Option<String>,
    hash: u64,
    /// Everything that was told, if it is to be shown.
    pub story: Option<Vec<String>>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Oracle {
    pub fn new(clock: Clock, accounts: usize, promises: Promises) -> Self {
        let nothing = || vec![Span { until: None, holder: Err(Code::UnknownAccount) }];
        Self {
            clock,
            promises,
            stamp: 0,
            truth: (0..accounts).map(|_| nothing()).collect(),
            asks: BTreeMap::new(),
            highest: vec![None; accounts],
            restored: false,
            wrong: None,
            hash: 0xcbf2_9ce4_8422_2325,
            story: None,
            counts: BTreeMap::new(),
        }
    }

    /// The first thing that did not hold.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// A digest of everything that was told.
    pub fn digest(&self) -> u64 {
        self.hash
    }

    /// Takes a line into the story.
    pub fn tell(&mut self, line: fmt::Arguments<'_>) {
        self.stamp += 1;
        let line = format!("{:>9} {line}", self.clock.now().as_nanos() / 1000);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(story) = &mut self.story {
            story.push(line);
        }
    }

    pub fn fail(&mut self, what: fmt::Arguments<'_>) {
        self.tell(format_args!("WRONG: {what}"));
        self.wrong.get_or_insert_with(|| what.to_string());
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // What the service did.

    /// What stands in an account's tree from now on.
    pub fn stands(&mut self, account: usize, tree: Option<&Tree>) {
        let holder = match tree {
            None => Err(Code::UnknownAccount),
            Some(Tree { active: None, .. }) => Err(Code::NoHolder),
            Some(tree) => tree.holder().cloned().ok_or(Code::InvalidHolder),
        };
        self.tell(format_args!("wx{account} is {}", Told(&holder)));
        let now = (self.stamp, self.clock.now());
        let spans = &mut self.truth[account];
        if let Some(last) = spans.last_mut() {
            if last.holder == holder {
                return;
            }
            last.until = Some(now);
        }
        spans.push(Span { until: None, holder });
        self.count("commits");
    }

    /// The service was restored from an older copy.
    pub fn restored(&mut self) {
        self.restored = true;
        self.tell(format_args!("the service is restored from an older copy"));
    }

    // What happened to requests.

    /// All of a request is in.
    pub fn arrived(&mut self, ask: u64, account: usize, claim: &Claim, patience: Duration) {
        self.tell(format_args!("{ask} asks for wx{account}: {claim:?}"));
        let arrived = (self.stamp, self.clock.now());
        let claim = claim.clone();
        let stage = Stage::Parked;
        self.asks.insert(
            ask,
            Ask { account, claim, patience, arrived, epoch: None, stage, written: 0, answered: false },
        );
    }

    /// It was refused, and nothing was sent.
    pub fn refused(&mut self, number: u64, code: Code) {
        self.tell(format_args!("{number} is refused: {}", code.as_str()));
        self.count(code.as_str());
        self.bounded(number);
        let Some(mut ask) = self.asks.remove(&number) else {
            return self.fail(format_args!("{number} ends twice"));
        };
        if ask.written > 0 {
            self.fail(format_args!("G4: {number} was refused and {} times sent", ask.written));
        }
        if let Some(why) = self.refused_wrongly(&ask, code) {
            self.fail(format_args!("{number} was refused with {}: {why}", code.as_str()));
        }
        ask.stage = Stage::Ended;
        self.asks.insert(number, ask);
    }

    fn refused_wrongly(&self, ask: &Ask, code: Code) -> Option<&'static str> {
        let spans = || self.since(ask, Duration::ZERO);
        match code {
            Code::HistoryReset => (!self.restored).then_some("no history went back"),
            Code::ViewUnproven => (self.clock.now().since(ask.arrived.1) < self.promises.park_timeout)
                .then_some("it had more time"),
            Code::Overloaded => (self.permitted(ask.account) < self.promises.most_in_flight)
                .then_some("there was room for one more"),
            Code::Superseded => {
                let still = self.truth[ask.account].last().and_then(|span| span.holder.as_ref().ok());
                (!self.restored && still.map(|holder| holder.epoch) == ask.epoch).then_some("it still holds")
            }
            _ if self.restored => None,
            // An epoch that is over is refused by whatever is known.
            _ if ask.claim.epoch.is_some()
                && spans().any(|span| deserves(&span.holder, &ask.claim).is_some()) =>
            {
                None
            }
            code => spans()
                .all(|span| deserves(&span.holder, &ask.claim) != Some(code))
                .then_some("at no moment since it was in it deserved that"),
        }
    }

    /// It has a permit; what the sender will be told.
    pub fn admitted(&mut self, number: u64, account: &str, epoch: i64) {
        self.tell(format_args!("{number} is admitted in term {epoch}"));
        self.count("admitted");
        self.bounded(number);
        let Some(ask) = self.asks.get_mut(&number) else { return };
        (ask.epoch, ask.stage) = (Some(epoch), Stage::Permitted);
        let ask = &self.asks[&number];
        let wrong = [
            (format!("wx{}", ask.account) != account).then_some("I8: it was judged for another account"),
            self.since(ask, self.promises.max_staleness)
                .all(|span| {
                    span.holder.as_ref().map(|holder| holder.epoch) != Ok(epoch)
                        || deserves(&span.holder, &ask.claim).is_some()
                })
                .then_some("G1: its token was not the holder's at any moment since it was in"),
            (!self.restored && self.highest[ask.account].is_some_and(|highest| epoch < highest))
                .then_some("I2: the epoch went back"),
            self.sent_of_others(ask.account, epoch)
                .then_some("I1, G2: sends of an earlier holder are under way"),
        ];
        let account = ask.account;
        self.highest[account] = self.highest[account].max(Some(epoch));
        for wrong in wrong.into_iter().flatten() {
            self.fail(format_args!("{number}: {wrong}"));
        }
    }

    /// The sender may have seen a byte of it.
    pub fn sent(&mut self, number: u64) {
        self.tell(format_args!("{number} reaches the sender"));
        let Some(ask) = self.asks.get_mut(&number) else { return };
        ask.written += 1;
        let (account, epoch, written) = (ask.account, ask.epoch, ask.written);
        let early = std::mem::replace(&mut ask.stage, Stage::Sent) != Stage::Permitted;
        if written > 1 || early {
            self.fail(format_args!("I6: {number} was sent {written} times, or without a permit"));
        }
        if self.sent_of_others(account, epoch.unwrap_or(0)) {
            self.fail(format_args!("G2: {number} was sent while sends of another holder are under way"));
        }
    }

    /// Its send is over.
    pub fn ended(&mut self, number: u64, end: End) {
        self.tell(format_args!("{number} ends: {end:?}"));
        self.count(match end {
            End::Answered => "answered",
            End::Failed => "failed",
            End::Cut => "cut",
        });
        let Some(ask) = self.asks.get_mut(&number) else { return };
        (ask.stage, ask.answered) = (Stage::Ended, end == End::Answered);
        let ask = &self.asks[&number];
        let over = |span: &Span| {
            span.holder.as_ref().is_ok_and(|holder| Some(holder.epoch) == ask.epoch)
                && span.until.is_some_and(|(_, at)| at.after(ask.patience) <= self.clock.now())
        };
        if end == End::Cut && !self.restored && !self.truth[ask.account].iter().any(over) {
            self.fail(format_args!("{number} was cut before its time"));
        }
    }

    /// Its caller left before it had a permit.
    pub fn withdrawn(&mut self, number: u64) {
        if let Some(ask) = self.asks.get_mut(&number).filter(|ask| ask.stage == Stage::Parked) {
            ask.stage = Stage::Ended;
            self.tell(format_args!("{number} is withdrawn"));
            self.count("withdrawn");
        }
    }

    /// I4: it waited no longer than a proof, a drain and another proof may take, and a little.
    fn bounded(&mut self, number: u64) {
        let Some(ask) = self.asks.get(&number) else { return };
        let most = self.promises.park_timeout * 3 + LONGEST_PATIENCE * 2 + Duration::from_millis(100);
        if ask.stage == Stage::Parked && self.clock.now().since(ask.arrived.1) > most {
            self.fail(format_args!("I4: {number} waited longer than {most:?}"));
        }
    }

    // What is under way.

    fn of(&self, account: usize) -> impl Iterator<Item = &Ask> {
        self.asks.values().filter(move |ask| ask.account == account)
    }

    /// How many sends of an account have reached the sender and are not over.
    pub fn under_way(&self, account: usize) -> usize {
        self.of(account).filter(|ask| ask.stage == Stage::Sent).count()
    }

    /// How many have a permit, used or not.
    pub fn permitted(&self, account: usize) -> usize {
        self.of(account).filter(|ask| matches!(ask.stage, Stage::Permitted | Stage::Sent)).count()
    }

    /// How many have not ended.
    pub fn open(&self) -> usize {
        self.asks.values().filter(|ask| ask.stage != Stage::Ended).count()
    }

    /// Whether the sender's answer to it has come.
    pub fn was_answered(&self, number: u64) -> bool {
        self.asks.get(&number).is_some_and(|ask| ask.answered)
    }

    /// Forgets what has ended.
    pub fn tidy(&mut self) {
        self.asks.retain(|_, ask| ask.stage != Stage::Ended);
    }

    fn sent_of_others(&self, account: usize, epoch: i64) -> bool {
        self.of(account).any(|ask| ask.stage == Stage::Sent && ask.epoch != Some(epoch))
    }

    /// What held at some moment since a request was in, or `older` before that.
    fn since(&self, ask: &Ask, older: Duration) -> impl Iterator<Item = &Span> {
        let (stamp, at) = ask.arrived;
        let held = move |span: &&Span| {
            span.until
                .is_none_or(|(until, ended)| until > stamp || (!older.is_zero() && ended.after(older) >= at))
        };
        self.truth[ask.account].iter().filter(held)
    }
}

/// The longest a superseded send may go on in any world.
pub const LONGEST_PATIENCE: Duration = Duration::from_millis(2500);

/// What a claim deserves: nothing against it, or the code that the contract's table gives.
fn deserves(truth: &Result<Active, Code>, claim: &Claim) -> Option<Code> {
    let holder = match truth {
        Ok(holder) => holder,
        Err(code) => return Some(*code),
    };
    let claimed = claim.seq.0;
    [
        (claimed < holder.seq, Code::StaleToken),
        (claimed > holder.seq, Code::NotHolder),
        (claim.session.0 != holder.session, Code::SessionMismatch),
        (claim.instance.as_ref().is_some_and(|name| *name != holder.instance), Code::InstanceMismatch),
        (claim.epoch.is_some_and(|epoch| epoch.0 != holder.epoch), Code::EpochMismatch),
    ]
    .into_iter()
    .find_map(|(wrong, code)| wrong.then_some(code))
}

struct Told<'a>(&'a Result<Active, Code>);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(Active { seq, session, instance, epoch }) => {
                write!(f, "held by {instance}, seq {seq} of session {session}, in term {epoch}")
            }
            Err(code) => f.write_str(code.as_str()),
        }
    }
}
