//! The story: A holds, A freezes, B takes over and answers, A wakes and answers as well.

use std::time::Duration;

use tokio::time::sleep;

use super::client::{Instance, call};
use super::sender::Recorded;
use super::{DemoError, Places};

/// How many messages wait for an answer when A freezes.
const MESSAGES: usize = 3;

/// How often something is asked until it is so.
const PACE: Duration = Duration::from_millis(50);

/// How long a reader gets for a line.
const BREATH: Duration = Duration::from_millis(700);

/// The accounts that go on after the story.
const ACCOUNTS: [&str; 3] = ["wxid_anna", "wxid_ben", "wxid_cleo"];

/// How many rounds of traffic an account stays with its holder.
const ROUNDS: usize = 10;

/// Prints a line. Whoever reads no further, as in `fencegate demo | head`, misses the rest and nothing else happens.
macro_rules! say {
    ($($line:tt)*) => {
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($line)*)));
    };
}

/// Says what happens, a line at a time, coloured where somebody sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    pub(super) colour: bool,
}

impl Teller {
    fn paint(self, colour: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    async fn tell(self, colour: &str, who: &str, what: &str) {
        say!("  {}  {what}", self.paint(colour, &format!("{who:<7}")));
        if self.colour {
            sleep(BREATH).await;
        }
    }
}

const GREEN: &str = "32";
const RED: &str = "1;31";
const CYAN: &str = "36";
const YELLOW: &str = "33";
const BOLD: &str = "1";

/// Plays it past the gateway and through it, and says the score; whether it is right. Then, unless `once`, keeps traffic going
/// for ever.
pub(super) async fn play(
    teller: &Teller,
    places: Places,
    recorded: &Recorded,
    once: bool,
) -> Result<bool, DemoError> {
    while call(places.admin, "GET", "/readyz", &[], String::new()).await?.0 != 200 {
        sleep(PACE).await;
    }
    say!("\n{}", teller.paint(BOLD, "fencegate: two instances, one account, and a zombie"));
    say!("\n{}\n", teller.paint(BOLD, "1. Without the gateway: both send to the sender directly"));
    act(*teller, places, "direct", places.sender).await?;
    say!("\n{}\n", teller.paint(BOLD, "2. With the gateway: the same story, the same sender"));
    let (old, seq) = act(*teller, places, "fenced", places.proxy).await?;
    let (without, with) = (recorded.doubles("direct"), recorded.doubles("fenced"));
    let right = without == MESSAGES && with == 0;
    say!("\n{}\n", teller.paint(BOLD, "Score"));
    say!("  double sends without the gateway: {}", teller.paint(RED, &without.to_string()));
    say!("  double sends with the gateway:    {}", teller.paint(GREEN, &with.to_string()));
    if once {
        return Ok(right);
    }
    say!("\n{}  http://{}/\n", teller.paint(BOLD, "Watch it:"), places.admin);
    say!("  curl http://{}/v1/accounts", places.admin);
    say!(
        "  curl -i http://{}/wx/wxid_fenced/send -H 'X-Fencing-Seq: {seq}' -H 'X-Fencing-Session: {}' -d hello",
        places.proxy,
        old.session
    );
    say!("\nThe second one sends as A's zombie would. Traffic goes on until Ctrl-C.");
    traffic(places).await?;
    Ok(right)
}

/// One playing of the story; A and the number it held with.
async fn act(
    teller: Teller,
    places: Places,
    name: &str,
    to: std::net::SocketAddr,
) -> Result<(Instance, u64), DemoError> {
    let account = format!("wxid_{name}");
    let text = |number: usize| format!("{name}: the answer to message {number}");
    let a = Instance::begin(places.elections, "A", "2s").await?;
    let b = Instance::begin(places.elections, "B", "5m").await?;
    let (a_seq, _) = a.stand(&account).await?;
    teller
        .tell(CYAN, a.name, &format!("holds {account} (seq {a_seq}), and has {MESSAGES} messages to answer"))
        .await;
    let (b_seq, _) = b.stand(&account).await?;
    teller.tell(CYAN, b.name, "waits as the next one").await;
    a.renew().await?;
    teller.tell(YELLOW, a.name, "checks that it holds: yes. Then it freezes, before the first byte").await;
    while !b.stand(&account).await?.1 {
        sleep(PACE).await;
    }
    teller
        .tell(
            CYAN,
            b.name,
            &format!("A's session is over: B holds (seq {b_seq}) and answers the {MESSAGES} messages"),
        )
        .await;
    for number in 1..=MESSAGES {
        let (status, code) = b.send(to, &account, b_seq, &text(number)).await?;
        let said = format!("message {number}: {status} {code}");
        teller.tell(GREEN, b.name, said.trim_end()).await;
    }
    teller.tell(YELLOW, a.name, "wakes. For itself no time has passed: it sends its answers").await;
    for number in 1..=MESSAGES {
        let (status, code) = a.send(to, &account, a_seq, &text(number)).await?;
        let (colour, said) = match status {
            200 => (RED, format!("message {number}: 200, the customer reads it twice")),
            _ => (GREEN, format!("message {number}: {status} {code}, the gateway refused it")),
        };
        teller.tell(colour, a.name, &said).await;
    }
    Ok((a, a_seq))
}

/// Accounts whose holders send and hand over, for ever.
async fn traffic(places: Places) -> Result<(), DemoError> {
    let a = Instance::begin(places.elections, "A", "1m").await?;
    let b = Instance::begin(places.elections, "B", "1m").await?;
    for round in 0_usize.. {
        for (index, account) in ACCOUNTS.iter().enumerate() {
            // Now and then the holder gives an account up, and stands again behind the other.
            if round % ROUNDS == ROUNDS - 1 && (round / ROUNDS) % ACCOUNTS.len() == index {
                let holder = if a.stand(account).await?.1 { &a } else { &b };
                holder.resign(account).await?;
            }
            for instance in [&a, &b] {
                let (seq, holds) = instance.stand(account).await?;
                if holds {
                    instance.send(places.proxy, account, seq, "traffic").await?;
                }
            }
        }
        a.renew().await?;
        b.renew().await?;
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
