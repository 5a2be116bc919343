//! The gateway: listeners, the way of a request, and the accounts it is judged by.
//!
//! [`ingress`] is the way of a request, step by step; [`admission`] is where it is judged; [`registry`] is what it is
//! judged by; [`follower`] keeps that current; [`server`] runs it all.

pub mod activity;
pub mod admission;
mod allowed;
pub mod body;
pub mod connection;
pub mod entry;
pub mod events;
pub mod follower;
mod ingress;
pub mod journey;
pub mod outgoing;
pub mod parking;
mod plan;
pub mod proofs;
pub mod registry;
pub mod reply;
pub mod server;
pub mod service;
pub mod status;
