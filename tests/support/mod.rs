//! The test kit: real parts on loopback for integration tests, brought in by `mod support;`.
//!
//! [`Ensemble`] (ZooKeeper servers), [`Sender`] (an upstream that records), [`Relay`] (a line that fails on demand),
//! [`Authority`] (certificates), [`Instance`] (a bot with a session of its own), [`Gateway`] (the built binary),
//! [`Browser`] (which shows its page), [`Elections`] (whoever holds them), [`Stage`] (all of them, shared by a file's tests),
//! [`http1`] (raw bytes to any of them), [`http2`] (frames), [`wait`] (conditions instead of sleeps). Every part stops and removes
//! its files when it is dropped. Everything
//! blocks, and may be called from async tests of the multi-thread flavour. It never skips: what is missing makes the test
//! fail and says what to install.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "each test binary uses a part of the kit, and a kit may panic and read clocks"
)]

pub mod agent;
pub mod answer;
pub mod browser;
pub mod certificates;
pub mod elections;
pub mod expect;
pub mod gateway;
pub mod http1;
pub mod http2;
pub mod instance;
pub mod metrics;
pub mod place;
pub mod process;
pub mod relay;
pub mod sender;
pub mod stage;
pub mod tls;
pub mod wait;
pub mod zookeeper;

pub use agent::{Agent, AgentSetup};
pub use answer::{Answer, Ending};
pub use browser::Browser;
pub use certificates::{Authority, Certificate};
pub use elections::{Elections, InGateway, InZooKeeper};
pub use expect::{answer_to, assert_admitted, assert_bytes_refused, assert_no_request, assert_refused, only};
pub use gateway::{Gateway, Setup};
pub use http1::{Connection, Headers, Response, call, get_json, try_call};
pub use instance::Instance;
pub use metrics::Metrics;
pub use place::{Folder, free_port, loopback};
pub use process::Process;
pub use relay::Relay;
pub use sender::{Recorded, Sender};
pub use stage::{Holder, Shared, Stage, named_route, route};
pub use wait::{Latch, PATIENCE, eventually, now, run, stays, wait_for, wait_for_within, wait_until};
pub use zookeeper::{Ensemble, Plan, ZooKeeper};
