//! Requests and the sender: slow bodies, callers that leave, sends that are slow, hang and fail.
//!
//! A request goes the gateway's way with the gateway's parts; only bytes and connections are played. What an exchange with a
//! sender may do is done here in the same order: connect, begin, write, wait for the answer, close, give the permit back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencegate::code::Code;
use fencegate::fence::token::Claim;
use fencegate::forward::{Authority, Stop};
use fencegate::gateway::admission::{Admission, Judge};
use fencegate::gateway::entry::Send;
use fencegate::gateway::journey::{Journey, RunToEnd};
use fencegate::telemetry::Verdict;
use http::HeaderValue;

use super::oracle::End;
use super::world::World;

/// Everything about one request, drawn when it is made.
#[derive(Clone, Debug)]
pub struct Ask {
    pub number: u64,
    pub account: usize,
    pub claim: Claim,
    /// Until all of its body is in.
    pub body: Duration,
    /// When its caller leaves, if it does.
    pub leaves: Option<Duration>,
    pub patience: Duration,
    pub connect: Duration,
    /// The first connection turns out to be closed: nothing is written, and another one is made.
    pub idle_close: bool,
    /// How long the sender takes, and whether it answers.
    pub service: Duration,
    pub fails: bool,
    /// Until the sender has seen that a connection is closed.
    pub close: Duration,
}

/// The longest an exchange may take.
const TOTAL: Duration = Duration::from_secs(5);

/// One request, from its head to its end.
pub async fn request(world: Arc<World>, ask: Ask) {
    let (number, leaves) = (ask.number, ask.leaves);
    let serving = serve(Arc::clone(&world), ask);
    match leaves {
        None => serving.await,
        Some(leaves) => {
            if tokio::time::timeout(leaves, serving).await.is_err() {
                world.state().oracle.withdrawn(number);
            }
        }
    }
}

async fn serve(world: Arc<World>, ask: Ask) {
    let name = world.state().service.names[ask.account].clone();
    let entry = world.gateway.registry.get(name.as_str());
    let mut journey = Journey::begin(Arc::clone(&world.gateway));
    tokio::time::sleep(ask.body).await;
    journey.body_is_in();
    world.state().oracle.arrived(ask.number, ask.account, &ask.claim, ask.patience);
    let send = Arc::new(Send::new(HeaderValue::from(ask.number)));
    let judge = Judge {
        registry: &world.gateway.registry,
        rules: &world.rules,
        account: name.as_str(),
        entry: entry.as_ref(),
        claim: &ask.claim,
        send: &send,
        relay: world.relay(),
        patience: ask.patience,
    };
    match judge.admit().await {
        Err(refused) => {
            world.state().oracle.refused(ask.number, refused.code);
            journey.verdict(Verdict::Refused(refused.code));
        }
        Ok(admission) => {
            let told = |value: &HeaderValue| value.to_str().unwrap().to_owned();
            let (account, epoch) = (told(&admission.identity.account), told(&admission.identity.epoch));
            world.state().oracle.admitted(ask.number, &account, epoch.parse().unwrap());
            journey.verdict(Verdict::Admitted);
            drop(journey);
            RunToEnd::new(forward(Arc::clone(&world), ask, admission)).await;
        }
    }
}

/// The exchange with the sender. The permit ends when nothing of it can reach the sender any more.
async fn forward(world: Arc<World>, mut ask: Ask, admission: Admission) {
    loop {
        let refused = match within(&admission, ask.connect).await {
            Some(_) => Some(Code::Superseded),
            None => admission.begin().err(),
        };
        if let Some(code) = refused {
            world.state().oracle.refused(ask.number, code);
            return;
        }
        if !std::mem::take(&mut ask.idle_close) {
            break;
        }
        tokio::task::yield_now().await;
        admission.unbegin();
    }
    world.state().oracle.sent(ask.number);
    let end = match within(&admission, ask.service.min(TOTAL)).await {
        None if ask.fails || ask.service > TOTAL => End::Failed,
        None => End::Answered,
        Some(_) => End::Cut,
    };
    if end != End::Answered {
        tokio::time::sleep(ask.close).await;
    }
    world.state().oracle.ended(ask.number, end);
    drop(admission);
}

/// Waits, as long as the permit lasts.
async fn within(admission: &Admission, wait: Duration) -> Option<Stop> {
    let mut waiting = pin!(tokio::time::sleep(wait));
    poll_fn(|cx| {
        if waiting.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        admission.poll_stop(cx).map(Some)
    })
    .await
}
