//! The gateway: listeners, the way of a request, and the accounts it is judged by.

pub mod admission;
pub mod entry;
pub mod events;
pub mod follower;
pub mod parking;
pub mod proofs;
pub mod registry;
pub mod status;
