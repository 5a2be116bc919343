//! A bot that elects itself and sends once, as docs/bots.md shows it.

use fencegate::election::zookeeper::{Settings as Zk, ZkSessions};
use fencegate::elector::{Accounts, Elector, Settings};
use fencegate::fence::name::AccountName;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = |name| std::env::var(name);
    let (instance, account) = (env("INSTANCE")?, AccountName::new(&env("ACCOUNT")?).ok_or("no account")?);
    let sessions = ZkSessions::new(Zk::new(&env("ZOOKEEPER")?, "/wx-accounts"), &instance);
    let elector = Elector::start(sessions, Settings::new(&instance, Accounts::These(vec![account.clone()])));
    let mut changes = elector.changes();
    while elector.token(account.as_str()).is_err() {
        changes.recv().await?; // INIT, CANDIDATE, WAITING, …, each with its reason
    }
    let sent = elector.execute_if_leader(&account, |token| async move {
        let url = format!("http://{}/wx/{}/send", std::env::var("GATEWAY")?, std::env::var("ACCOUNT")?);
        let headers =
            [("X-Fencing-Seq", token.seq.to_string()), ("X-Fencing-Session", token.session.to_string())];
        let headers = headers.map(|(name, value)| format!("-H{name}: {value}"));
        std::process::Command::new("curl").args(["-sS", "-d", "hello", &url]).args(headers).status()?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    sent.await??;
    elector.stop().await; // resigns: the next candidate leads within milliseconds
    Ok(())
}
