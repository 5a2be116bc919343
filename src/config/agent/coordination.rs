//! Who holds the elections an agent takes part in: `[coordination]`, and the sections that go with it.
//!
//! Keys of the other backend are refused, never ignored. It opens none of the files it names.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::error::Problem;
use super::super::model::Layout;
use super::super::section::Section;
use super::super::value::{choice, duration, parsed, parsed_url};
use super::super::{address, gateway, upstream};
use super::model::{AgentCoordination, AgentElection, GatewayElections};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    ZooKeeper,
    Gateway,
}

/// How long others wait for an agent that died, unless the file says otherwise.
const SESSION: Duration = Duration::from_secs(20);

/// The keys of `[coordination]` that only a gateway's elections have.
const GATEWAYS: [&str; 6] = [
    "elections",
    "elections_ca",
    "elections_cert",
    "elections_cert_key",
    "elections_name",
    "session_timeout",
];

/// `None` only with problems.
pub(super) fn read(
    top: &mut Section<'_>,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> Option<AgentCoordination> {
    let mut section = top.table("coordination");
    let backends = choice(&[("zookeeper", Backend::ZooKeeper), ("gateway", Backend::Gateway)], &["etcd"]);
    let named = section.is_there("backend");
    match section.optional("backend", backends) {
        // A backend that was refused already is the one thing to say.
        None if named => {
            for key in GATEWAYS {
                let _ = section.node(key);
            }
            section.finish(problems);
            let _ = (top.node("zookeeper"), top.node("election"));
            None
        }
        Some(Backend::Gateway) => {
            for key in ["zookeeper", "election"] {
                if top.is_there(key) {
                    let place = top.place_of(key);
                    let text = format!(
                        "`{key}`: the gateway holds the elections; allowed: without [{key}], or with \
                         backend = \"zookeeper\" in [coordination]"
                    );
                    top.problem(&place, text);
                }
            }
            elections(section, problems).map(AgentCoordination::Gateway)
        }
        Some(Backend::ZooKeeper) | None => {
            for key in GATEWAYS {
                if section.is_there(key) {
                    let place = section.place_of(key);
                    let text = format!(
                        "`{key}`: ZooKeeper holds the elections; allowed: with backend = \"gateway\""
                    );
                    section.problem(&place, text);
                }
            }
            section.finish(problems);
            let service = gateway::zookeeper(top.table("zookeeper"), SESSION, env, problems);
            let election = layout(top.table("election"), problems);
            Some(AgentCoordination::ZooKeeper { service: service?, election })
        }
    }
}

fn elections(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Option<GatewayElections> {
    let elections = section.need("elections", upstream::URL, parsed_url(upstream::URL, upstream::url));
    let addresses = elections.as_ref().map(std::slice::from_ref);
    let protocol = upstream::protocol(&mut section, &upstream::ELECTIONS, addresses);
    let session = duration(Duration::from_secs(2), Duration::from_secs(300));
    let session_timeout = section.take("session_timeout", session, SESSION);
    section.finish(problems);
    Some(GatewayElections { elections: elections?, protocol, session_timeout })
}

fn layout(mut section: Section<'_>, problems: &mut Vec<Problem>) -> AgentElection {
    let layouts = choice(&[("active-node", Layout::ActiveNode)], &["lowest-member", "single-node"]);
    let root = parsed("a path such as \"/wx-accounts\"", address::znode);
    let election = AgentElection {
        layout: section.take("layout", layouts, Layout::ActiveNode),
        root: section.take("root", root, "/wx-accounts".to_owned()),
    };
    section.finish(problems);
    election
}
