//! `/metrics`, as a scraper sees it.

use std::collections::HashSet;

use super::*;
use crate::code::Code;
use crate::telemetry::help::{self, Kind};

/// Checks the form of the whole text: each metric is introduced once, its samples follow it, and none comes twice.
fn check_form(text: &str) {
    let (mut introduced, mut samples, mut current) = (HashSet::new(), HashSet::new(), "");
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            current = rest.split(' ').next().unwrap();
            assert!(introduced.insert(current), "{current} is introduced twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = help::ALL.iter().find(|(name, _, _)| *name == current).unwrap().1;
            assert_eq!(rest, format!("{current} {}", kind.as_str()));
        } else {
            let end = line.find(['{', ' ']).unwrap();
            let name = &line[..end];
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(name == current || base == Some(current), "{line} stands under {current}");
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(samples.insert(series), "{series} comes twice");
        }
    }
}

async fn scrape(world: &World) -> Answer {
    let answer = world.get("/metrics").await;
    assert_eq!((answer.status, answer.kind()), (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8"));
    check_form(&answer.body);
    answer
}

#[tokio::test]
async fn every_metric_is_there_before_anything_happens() {
    let world = World::closed(Memory::default(), true, 10);
    world.follower.abort();
    let text = scrape(&world).await;
    let per_account = [
        name::REJECTIONS,
        name::SHADOW_REJECTIONS,
        name::HOLDER_INFO,
        name::CANDIDATES,
        name::HANDOVERS,
        name::LAST_HANDOVER,
    ];
    // An agent has its own beside these.
    for (name, kind, _) in help::ALL.iter().filter(|(name, ..)| !name.starts_with("fencegate_agent_")) {
        assert!(text.body.contains(&format!("# TYPE {name} {}\n", kind.as_str())), "{name}");
        let count = match kind {
            Kind::Histogram => format!("{name}_count"),
            Kind::Counter | Kind::Gauge => (*name).to_owned(),
        };
        assert_eq!(text.samples(&count).is_empty(), per_account.contains(name), "{name}");
        let zero = !name.starts_with("process_") && ![name::BUILD_INFO, name::IN_FLIGHT].contains(name);
        assert!(!zero || text.samples(&count).iter().all(|line| line.ends_with(" 0")), "{name}");
    }
    for state in ["held", "vacant", "invalid", "unknown"] {
        assert!(
            text.samples(name::ACCOUNTS).contains(&&*format!("fencegate_accounts{{state=\"{state}\"}} 0"))
        );
    }
    assert_eq!(text.samples(name::IN_FLIGHT), ["fencegate_in_flight 7"]);
    assert_eq!(text.samples(name::START), ["process_start_time_seconds 1700000000.5"]);
    assert_eq!(text.samples(name::CONNECTIONS).len(), 2);
}

#[tokio::test]
async fn the_state_of_the_elections_is_told() {
    let world = World::new().await;
    world.stand("a", 1, "host").await;
    world.stand("b", 2, "host").await;
    world.stand("c", 3, "host").await;
    world.memory.end(SessionId(2));
    world.until_account("b", "vacant", |it| it["state"] == "vacant").await;
    world.tint("c", View::Absent).await;
    let text = scrape(&world).await;
    let states = text.samples(name::ACCOUNTS);
    for (state, count) in [("held", 1), ("vacant", 1), ("invalid", 0), ("unknown", 0)] {
        assert!(states.contains(&&*format!("fencegate_accounts{{state=\"{state}\"}} {count}")), "{states:?}");
    }
    assert_eq!(text.samples(name::VIEW_CONNECTED), ["fencegate_view_connected 1"]);
    assert_eq!(
        text.samples(name::CANDIDATES),
        ["fencegate_candidates{account=\"a\"} 1", "fencegate_candidates{account=\"b\"} 0"]
    );
}

#[tokio::test]
async fn a_holders_series_ends_when_its_holding_ends() {
    let world = World::new().await;
    let old = world.stand("wxid_1", 1, "host-a").await;
    let info = |instance: &str, seq: u64| {
        format!("fencegate_holder_info{{account=\"wxid_1\",instance_id=\"{instance}\",seq=\"{seq}\"}} 1")
    };
    assert_eq!(scrape(&world).await.samples(name::HOLDER_INFO), [info("host-a", old)]);

    world.memory.end(SessionId(1));
    world.until_account("wxid_1", "vacant", |it| it["state"] == "vacant").await;
    assert_eq!(scrape(&world).await.samples(name::HOLDER_INFO), Vec::<&str>::new());

    let new = world.stand("wxid_1", 2, "host-b").await;
    let text = scrape(&world).await;
    assert_eq!(text.samples(name::HOLDER_INFO), [info("host-b", new)]);
    assert_eq!(
        text.samples(name::HANDOVERS),
        ["fencegate_handovers_total{account=\"wxid_1\",reason=\"session_expired\"} 1"]
    );
    let last = text.samples(name::LAST_HANDOVER);
    let at = last[0].strip_prefix("fencegate_last_handover_timestamp_seconds{account=\"wxid_1\"} ").unwrap();
    assert!(at.parse::<f64>().unwrap() > 1.7e9);
    assert_eq!(text.samples("fencegate_vacancy_seconds_count"), ["fencegate_vacancy_seconds_count 1"]);
}

#[tokio::test]
async fn an_instance_id_from_outside_cannot_break_the_format() {
    let world = World::new().await;
    let seq = world.stand("wxid_1", 1, "a\"} 1\nfencegate_parked 9\\").await;
    let text = scrape(&world).await;
    assert_eq!(
        text.samples(name::HOLDER_INFO),
        [format!(
            "fencegate_holder_info{{account=\"wxid_1\",instance_id=\"a\\\"}} 1\\nfencegate_parked 9\\\\\",seq=\"{seq}\"}} 1"
        )]
    );
    assert_eq!(text.samples(name::PARKED), ["fencegate_parked 0"]);
}

#[tokio::test]
async fn an_account_without_a_znode_has_its_counters_only() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host-a").await;
    world.stand("wxid_2", 2, "host-a").await;
    world.tint("wxid_1", View::Absent).await;
    world.tint("wxid_2", View::Absent).await;
    world.registry.reject(world.registry.get("wxid_1").as_deref(), Code::UnknownAccount);
    let text = scrape(&world).await;
    assert_eq!(
        text.samples(name::REJECTIONS),
        ["fencegate_rejections_total{account=\"wxid_1\",code=\"unknown_account\"} 1"]
    );
    assert_eq!(text.samples(name::CANDIDATES), Vec::<&str>::new());
    assert!(!text.body.contains("wxid_2"));
}

async fn counted(world: &World) {
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        world.stand(name, index as i64 + 1, "host").await;
        let entry = world.registry.get(name).unwrap();
        world.registry.reject(Some(&entry), Code::StaleToken);
        entry.state().record.shadow.add(Code::NotHolder);
    }
    world.registry.reject(None, Code::UnknownAccount);
}

#[tokio::test]
async fn beyond_the_bound_accounts_are_summed_and_names_never_seen_stand_apart() {
    let world = World::with(true, 1).await;
    counted(&world).await;
    let text = scrape(&world).await;
    assert_eq!(
        text.samples(name::REJECTIONS),
        [
            "fencegate_rejections_total{account=\"a\",code=\"stale_token\"} 1",
            "fencegate_rejections_total{account=\"_other\",code=\"stale_token\"} 2",
            "fencegate_rejections_total{account=\"_unknown\",code=\"unknown_account\"} 1",
        ]
    );
    assert_eq!(text.samples(name::SHADOW_REJECTIONS).len(), 2);
    assert_eq!(text.samples(name::CANDIDATES), ["fencegate_candidates{account=\"a\"} 1"]);
    assert_eq!(text.samples(name::HOLDER_INFO).len(), 1);
}

#[tokio::test]
async fn an_account_that_is_called_like_a_sum_makes_no_series_twice() {
    let world = World::with(true, 3).await;
    counted(&world).await;
    for (session, name) in [(11, "_other"), (12, "_unknown"), (13, "d")] {
        world.stand(name, session, "host").await;
        world.registry.reject(world.registry.get(name).as_deref(), Code::UnknownAccount);
    }
    let text = scrape(&world).await;
    let line = "fencegate_rejections_total{account=\"_other\",code=\"unknown_account\"} 3";
    assert!(text.samples(name::REJECTIONS).contains(&line), "{}", text.body);
}

#[tokio::test]
async fn without_series_for_accounts_counters_are_summed_and_stand_at_zero_from_the_start() {
    let world = World::with(false, 10).await;
    let text = scrape(&world).await;
    let zero = "fencegate_rejections_total{code=\"unknown_account\"} 0";
    assert!(text.samples(name::REJECTIONS).contains(&zero), "{}", text.body);
    assert_eq!(text.samples(name::HANDOVERS).len(), 5);

    counted(&world).await;
    let text = scrape(&world).await;
    assert!(!text.body.contains("account=\""), "{}", text.body);
    for line in [
        "fencegate_rejections_total{code=\"stale_token\"} 3",
        "fencegate_rejections_total{code=\"unknown_account\"} 1",
        "fencegate_shadow_rejections_total{code=\"not_holder\"} 3",
        "fencegate_handovers_total{reason=\"session_expired\"} 0",
    ] {
        assert!(text.body.lines().any(|found| found == line), "{line}: {}", text.body);
    }
}

#[tokio::test(start_paused = true)]
async fn upkeep_goes_on_for_ever() {
    let telemetry = Arc::new(Telemetry::new());
    let upkeep = crate::admin::upkeep(Arc::clone(&telemetry));
    telemetry.proof_seconds.record(0.5);
    assert!(tokio::time::timeout(Duration::from_secs(3600), upkeep).await.is_err());
    assert!(telemetry.render().contains("fencegate_proof_seconds_count 1"));
}
