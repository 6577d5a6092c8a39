//! P3 where several gateways have one key: twins at once, the gateway that has the lead killed, the store emptied, days later.

use std::sync::Arc;

use capgate::cli::stub_buyer::StubBuyer;
use jiff::SignedDuration;

use crate::headline::behaviours;
use crate::support::{BuyerLine, OffClock, Place, client, closed, lead, post_until_taken, routing};

/// Keys are remembered for 72 hours; the store is lost in between, so that only the books know them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_f40_a_key_is_answered_from_the_books_until_its_time_is_over() {
    let stub = StubBuyer::on_loopback(behaviours(&["/a=accept"]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let more = "timeout_ms = 6000";
    place.write_routing(&routing(&[BuyerLine { id: "a", url: stub.url("/a"), more, price: "9.00" }]));
    let first = {
        let gateway = place.start("").await;
        let answer = post_until_taken(&client(), gateway.intake, "k", &lead(1)).await;
        let ledger = place.ledger().await;
        closed(&ledger, answer.lead()).await;
        ledger.shut_down().await;
        gateway.app.shut_down().await;
        post_answer(&place, SignedDuration::ZERO).await
    };
    for file in std::fs::read_dir(place.dir.path()).expect("a folder").flatten() {
        if file.file_name().to_string_lossy().starts_with("journal.db") {
            std::fs::remove_file(file.path()).expect("the store is lost");
        }
    }
    let almost = SignedDuration::from_hours(72) - SignedDuration::from_mins(10);
    assert_eq!(post_answer(&place, almost).await, first, "byte for byte");
    assert_eq!(stub.stats("/a").received, 1, "one chain");
    let over = SignedDuration::from_hours(72) + SignedDuration::from_mins(10);
    assert_ne!(post_answer(&place, over).await, first, "a key is free again after its time");
    assert_eq!(stub.stats("/a").received, 2);
}

/// What a gateway answers to the lead when its clock is ahead by so much.
async fn post_answer(place: &Place, ahead: SignedDuration) -> String {
    let gateway = place.start_by(Arc::new(OffClock(ahead)), "").await;
    let answer = post_until_taken(&client(), gateway.intake, "k", &lead(1)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    gateway.app.shut_down().await;
    String::from_utf8(answer.bytes).expect("text")
}

#[cfg(feature = "server-tests")]
mod on_servers {
    use std::net::SocketAddr;

    use super::*;
    use crate::server::Server;
    use crate::support::{Process, attempts, leads, try_post, until};

    /// Nothing here waits long for a gateway that is dead.
    const QUICK: &str = "[forward]\nallow_private_addresses = true\ntimeout_ms = 4000\nlate_answer_ms = \
                         500\nlead_deadline_ms = 1000";

    /// A hundred at once, in turn to these gateways; the ids and the final answers that came, each once.
    async fn twins(gateways: &[SocketAddr], key: &str) -> (Vec<String>, Vec<String>) {
        let asked: Vec<_> = (0..100)
            .map(|number| {
                let (intake, key) = (gateways[number % gateways.len()], key.to_owned());
                tokio::spawn(async move { try_post(&client(), intake, &key, &lead(1)).await })
            })
            .collect();
        let (mut ids, mut verdicts) = (Vec::new(), Vec::new());
        for asked in asked {
            // A gateway that is killed answers nothing, and 503 is no answer to the lead.
            let Some(answer) = asked.await.expect("it ends").filter(|answer| answer.status == 200) else { continue };
            ids.push(answer.text("lead_id"));
            if answer.text("status") != "pending" {
                verdicts.push(String::from_utf8(answer.bytes).expect("text"));
            }
        }
        for list in [&mut ids, &mut verdicts] {
            list.sort();
            list.dedup();
        }
        (ids, verdicts)
    }

    /// The verdict that every gateway gives in the end.
    async fn verdict(gateways: &[SocketAddr], key: &str) -> Vec<String> {
        let mut verdicts = Vec::new();
        for intake in gateways {
            let mut found = None;
            until("the key has its verdict", async || {
                let answer = try_post(&client(), *intake, key, &lead(1)).await;
                found = answer.filter(|answer| answer.status == 200 && answer.text("status") != "pending");
                found.is_some()
            })
            .await;
            verdicts.push(String::from_utf8(found.expect("it was found").bytes).expect("text"));
        }
        verdicts
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p3_p4_twins_at_three_gateways_have_one_chain_and_one_answer_whatever_is_lost() {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        let stub =
            StubBuyer::on_loopback(behaviours(&["/a=delay:50:accept", "/b=accept"]), 1).await.expect("a stub buyer");
        let mut place = Place::on_redis(server.url()).await;
        place.backing.store_more = "command_timeout_ms = 1000";
        place.write_routing(&routing(&[
            BuyerLine { id: "a", url: stub.url("/a"), more: "", price: "25.00" },
            BuyerLine { id: "b", url: stub.url("/b"), more: "", price: "10.00" },
        ]));
        let mut gateways: Vec<Process> =
            ["one.toml", "two.toml", "three.toml"].iter().map(|name| place.spawn(name, QUICK)).collect();
        for gateway in &gateways {
            gateway.until_ready().await;
        }
        let all: Vec<SocketAddr> = gateways.iter().map(|gateway| gateway.intake).collect();

        let (ids, verdicts) = twins(&all, "quiet").await;
        assert_eq!(ids.len(), 1, "{ids:?}");
        let quiet = verdict(&all, "quiet").await;
        assert!(quiet.iter().chain(&verdicts).all(|answer| *answer == quiet[0]), "{quiet:?} {verdicts:?}");
        assert_eq!((stub.stats("/a").received, stub.stats("/b").received), (1, 0), "one chain");

        // The gateway that has the lead dies with it at the buyer's.
        stub.set_behaviour("/a", "delay:3000:accept".parse().expect("a behaviour"));
        let owner = all[0];
        let first = tokio::spawn(async move { try_post(&client(), owner, "killed", &lead(1)).await });
        until("the buyer has the lead", async || stub.stats("/a").received == 2).await;
        let before = first.await.expect("it ends");
        let asked = tokio::spawn({
            let all = all.clone();
            async move { twins(&all, "killed").await }
        });
        until("twins are asked", async || asked.is_finished() || stub.stats("/a").received == 2).await;
        gateways[0].kill();
        let (mut ids, verdicts) = asked.await.expect("they end");
        ids.extend(before.filter(|answer| answer.status == 200).map(|answer| answer.text("lead_id")));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let alive = &all[1..];
        let killed = verdict(alive, "killed").await;
        assert!(killed.iter().chain(&verdicts).all(|answer| *answer == killed[0]), "{killed:?} {verdicts:?}");
        let asked = (stub.stats("/a").received, stub.stats("/b").received);
        assert_eq!(asked, (2, 1), "P4: the first buyer is in doubt, the second one has it");

        // The store forgets everything; both keys are in the books.
        let ledger = place.ledger().await;
        until("both are in the books", async || leads(&ledger.totals().await.expect("totals"), "sold") == 2).await;
        server.connection().await.run(&["FLUSHALL"]).await;
        for (key, before) in [("quiet", &quiet), ("killed", &killed)] {
            let (ids, verdicts) = twins(alive, key).await;
            let after = verdict(alive, key).await;
            assert!(
                ids.len() <= 1 && after.iter().chain(&verdicts).all(|answer| *answer == before[0]),
                "{key}: {after:?}"
            );
        }
        assert_eq!((stub.stats("/a").received, stub.stats("/b").received), asked, "nothing was posted again");
        let totals = ledger.totals().await.expect("totals");
        assert_eq!((attempts(&totals, "a", "accepted"), attempts(&totals, "a", "in_doubt")), (1, 1), "{totals:?}");
        for gateway in &mut gateways[1..] {
            tokio::task::block_in_place(|| gateway.terminate());
        }
        ledger.shut_down().await;
        place.backing.clean().await;
    }
}
