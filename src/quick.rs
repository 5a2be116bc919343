//! `fencegate serve` without a file: a configuration for a first look, and the lines to try it.
//!
//! It starts nothing.

use std::net::SocketAddr;

use crate::config::{self, Config, ConfigError};

/// Embedded elections and one route to `upstream`, with the environment laid over it.
///
/// # Errors
/// The upstream is none, or a variable is wrong.
pub fn config(
    upstream: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    config::parse("gateway.toml", &text(upstream), env)
}

fn text(upstream: &str) -> String {
    // Between quotes of TOML: whatever would leave them is no upstream in any case.
    let upstream: String = upstream.chars().filter(|c| !c.is_control()).collect();
    let upstream = upstream.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "[coordination]\nbackend = \"embedded\"\n\n[[route]]\npath = \"/wx/{{account}}/{{*rest}}\"\n\
         account = \"path:account\"\nupstream = \"{upstream}\"\n"
    )
}

/// Lines for a shell: an agent, which does all of that for a bot, and a send through it.
#[must_use]
pub fn agent_lines(proxy: SocketAddr, elections: SocketAddr) -> String {
    format!(
        r#"cat >agent.toml <<END
[agent]
gateway = "http://{proxy}"
accounts = ["wxid_2"]
[coordination]
backend = "gateway"
elections = "http://{elections}"
[[route]]
path = "/wx/{{account}}/{{*rest}}"
account = "path:account"
END
fencegate agent --config agent.toml &
sleep 1; curl -i http://127.0.0.1:7070/wx/wxid_2/send -d '{{}}'
"#
    )
}

/// Lines for a shell: a session, a candidate, and a send with its token.
#[must_use]
pub fn lines(proxy: SocketAddr, elections: SocketAddr) -> String {
    format!(
        r#"field() {{ sed "s/.*\"$1\":\"\{{0,1\}}\([^\",}}]*\).*/\1/"; }}
S=$(curl -s http://{elections}/v1/sessions -d '{{"instance_id":"me","ttl":"5m"}}')
C=$(curl -s -X POST http://{elections}/v1/elections/wxid_1/candidates -H "Authorization: Bearer $(echo "$S" | field secret)")
curl -i http://{proxy}/wx/wxid_1/send -H "X-Fencing-Seq: $(echo "$C" | field seq)" -H "X-Fencing-Session: $(echo "$S" | field session)" -d '{{}}'
"#
    )
}
