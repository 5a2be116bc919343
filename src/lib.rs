//! fencegate: an HTTP gateway that lets through only the sends of an account's current holder.
//!
//! Reading order: [`fence`] (the pure core: what is admitted), [`claim`] (what a request claims), [`election`] (where
//! holders come from), [`gateway`] (the proxy), [`elector`] and [`agent`] (the instances' side), [`forward`] (one request to one upstream, at most once), [`admin`] (what
//! operators see), [`config`].

pub mod admin;
pub mod agent;
pub mod ask;
pub mod ballot;
pub mod claim;
pub mod clock;
pub mod code;
pub mod config;
pub mod demo;
pub mod descriptors;
pub mod election;
pub mod elector;
pub mod explain;
pub mod fence;
pub mod forward;
pub mod gateway;
pub mod init;
pub mod key;
pub mod logging;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
pub mod quick;
pub mod serve;
pub mod status;
mod sync;
pub mod telemetry;
pub mod tls;
pub mod web;
