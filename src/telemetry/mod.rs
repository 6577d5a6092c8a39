//! What the gateway tells about itself: metrics and logs. Labels are ids from the routing and words from fixed lists,
//! never anything that a request brought (F88, P9).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::domain::cap::Limit;
use crate::domain::explanation::Check;
use crate::domain::id::{BuyerId, CampaignId, PublisherId};
use crate::domain::routing::Routing;
use crate::domain::window::zone_data_version;
use names::{Kind, Metric};

pub mod log;
pub mod names;
mod recorders;

pub use recorders::{
    BuyerMetrics, CapMetrics, CounterOf, Decided, FilterMetrics, GaugeOf, IntakeMetrics, LeadMetrics, LeaseResult,
    LedgerMetrics, PostbackResult, Recovered, ReloadResult, RoutingMetrics, SETTLED_TABLES, StoreMetrics,
};

/// How often samples are moved into their buckets when nobody scrapes (F89).
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Series of a publisher in a campaign start at 0 up to this many pairs; beyond it they start with their first lead.
const PAIRS_STARTED_MAX: usize = 2_000;
/// Label of what is no longer, or never was, in the routing.
const OTHER: &str = "other";

/// All recorders of one gateway. Each gateway has its own, so that several can live in one process.
#[derive(Debug)]
pub struct Telemetry {
    registry: Registry,
    /// Publishers' requests.
    pub intake: IntakeMetrics,
    /// Static rules.
    pub filter: FilterMetrics,
    /// Hot state.
    pub store: StoreMetrics,
    /// The books.
    pub ledger: LedgerMetrics,
    /// Routing file.
    pub routing: RoutingMetrics,
    known: RwLock<Known>,
}

#[derive(Debug)]
struct Known {
    buyers: HashMap<BuyerId, Arc<BuyerMetrics>>,
    other_buyer: Arc<BuyerMetrics>,
    /// By campaign, then by publisher; `None` until the first lead of a pair.
    leads: HashMap<CampaignId, HashMap<PublisherId, Option<Arc<LeadMetrics>>>>,
    other_leads: Arc<LeadMetrics>,
    /// Of publishers that have a postback.
    postbacks: HashMap<PublisherId, Arc<CounterOf<PostbackResult>>>,
    other_postbacks: Arc<CounterOf<PostbackResult>>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// Recorders that know no publisher and no buyer yet.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        registry.gauge(&names::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        registry.gauge(&names::ZONE_DATA_INFO, &[("version", zone_data_version())]).set(1.0);
        let known = Known {
            buyers: HashMap::new(),
            other_buyer: Arc::new(BuyerMetrics::new(&registry, OTHER, [])),
            leads: HashMap::new(),
            other_leads: Arc::new(LeadMetrics::new(&registry, OTHER, OTHER)),
            postbacks: HashMap::new(),
            other_postbacks: Arc::new(CounterOf::of_publisher(&registry, OTHER)),
        };
        Self {
            intake: IntakeMetrics::new(&registry),
            filter: FilterMetrics::new(&registry),
            store: StoreMetrics::new(&registry),
            ledger: LedgerMetrics::new(&registry),
            routing: RoutingMetrics::new(&registry),
            known: RwLock::new(known),
            registry,
        }
    }

    /// Starts the series of everything in a routing at 0 and forgets ids that are no longer in it: what still happens to
    /// them is counted as `other`, and their gauges fall to 0.
    pub fn know(&self, routing: &Routing) {
        let pairs = routing.publishers.len().saturating_mul(routing.campaigns.len());
        let buyers: HashMap<_, _> = routing
            .buyers
            .values()
            .map(|buyer| {
                let metrics =
                    BuyerMetrics::new(&self.registry, buyer.id.as_str(), buyer.caps.iter().map(|cap| cap.id.clone()));
                for cap in &buyer.caps {
                    metrics.cap(&cap.id).inspect(|gauges| gauges.limit.set(cap_value(cap.limit, cap.limit_units())));
                }
                metrics.paused.set(f64::from(u8::from(buyer.is_paused)));
                (buyer.id.clone(), Arc::new(metrics))
            })
            .collect();
        let leads = routing.campaigns.keys().map(|campaign| {
            let senders = routing
                .publishers
                .values()
                .filter(|publisher| publisher.campaigns.as_ref().is_none_or(|allowed| allowed.contains(campaign)));
            let series = senders.map(|publisher| {
                let started = (pairs <= PAIRS_STARTED_MAX)
                    .then(|| Arc::new(LeadMetrics::new(&self.registry, campaign.as_str(), publisher.id.as_str())));
                (publisher.id.clone(), started)
            });
            (campaign.clone(), series.collect())
        });
        let leads = leads.collect();
        let told = routing.publishers.keys().filter(|id| routing.publishers[*id].postback.is_some());
        let postbacks = told.map(|id| (id.clone(), Arc::new(CounterOf::of_publisher(&self.registry, id.as_str()))));
        let postbacks = postbacks.collect();
        self.routing.version.set(lossy(routing.version));
        let mut known = self.known.write();
        let before = std::mem::replace(&mut known.buyers, buyers);
        known.leads = leads;
        known.postbacks = postbacks;
        for (id, metrics) in before {
            metrics.reset_gauges_except(known.buyers.get(&id).map(|after| &**after));
        }
    }

    /// A buyer's recorders.
    #[must_use]
    pub fn buyer(&self, buyer: &BuyerId) -> Arc<BuyerMetrics> {
        let known = self.known.read();
        Arc::clone(known.buyers.get(buyer).unwrap_or(&known.other_buyer))
    }

    /// Recorders of a publisher's leads in a campaign.
    #[must_use]
    pub fn leads(&self, campaign: &CampaignId, publisher: &PublisherId) -> Arc<LeadMetrics> {
        {
            let known = self.known.read();
            match known.leads.get(campaign).and_then(|publishers| publishers.get(publisher)) {
                Some(Some(metrics)) => return Arc::clone(metrics),
                Some(None) => {}
                None => return Arc::clone(&known.other_leads),
            }
        }
        let mut known = self.known.write();
        let Some(slot) = known.leads.get_mut(campaign).and_then(|publishers| publishers.get_mut(publisher)) else {
            return Arc::clone(&known.other_leads);
        };
        let start = || Arc::new(LeadMetrics::new(&self.registry, campaign.as_str(), publisher.as_str()));
        Arc::clone(slot.get_or_insert_with(start))
    }

    /// Posts to a publisher, by result.
    #[must_use]
    pub fn postbacks_of(&self, publisher: &PublisherId) -> Arc<CounterOf<PostbackResult>> {
        let known = self.known.read();
        Arc::clone(known.postbacks.get(publisher).unwrap_or(&known.other_postbacks))
    }

    /// Posts to publishers that the routing does not know.
    #[must_use]
    pub fn other_postbacks(&self) -> Arc<CounterOf<PostbackResult>> {
        Arc::clone(&self.known.read().other_postbacks)
    }

    /// The page that Prometheus reads, in text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        self.registry.handle.render()
    }

    /// Moves samples into their buckets until `stop`: they would pile up while nobody scrapes (F89).
    pub async fn keep_up(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(UPKEEP_EVERY)).await.is_some() {
            self.registry.handle.run_upkeep();
        }
    }
}

/// The value of a cap as its gauges show it: whole leads, or currency units.
#[must_use]
pub fn cap_value(limit: Limit, units: u64) -> f64 {
    match limit {
        Limit::Leads(_) => lossy(units),
        Limit::Spend(_) => lossy(units) / 1_000_000.0,
    }
}

/// Gauges are floats; what they lose above 2^53 nobody can see on a chart. Decisions never use them.
#[allow(clippy::cast_precision_loss, reason = "only for display")]
fn lossy(units: u64) -> f64 {
    units as f64
}

/// Makes handles of the metrics in `names` and of no others.
struct Registry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

const METADATA: Metadata<'static> = Metadata::new("capgate", Level::INFO, None);

impl Registry {
    fn new() -> Self {
        let mut builder = PrometheusBuilder::new();
        for metric in names::ALL {
            if let Kind::Seconds(buckets) = metric.kind {
                let name = Matcher::Full(metric.name.to_owned());
                // Cannot fail because no list of buckets is empty; a test looks at the page.
                builder = builder.set_buckets_for_metric(name, buckets).unwrap_or_default();
            }
        }
        let recorder = builder.build_recorder();
        for metric in names::ALL {
            let (name, help) = (metric.name.into(), metric.help.into());
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Seconds(_) => recorder.describe_histogram(name, None, help),
            }
        }
        let handle = recorder.handle();
        Self { recorder, handle }
    }

    fn counter(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Counter {
        debug_assert_eq!(metric.kind, Kind::Counter);
        let counter = self.recorder.register_counter(&key(metric, labels), &METADATA);
        // A series is on the page from now on, at 0.
        counter.increment(0);
        counter
    }

    fn gauge(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Gauge {
        debug_assert_eq!(metric.kind, Kind::Gauge);
        self.recorder.register_gauge(&key(metric, labels), &METADATA)
    }

    fn histogram(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Histogram {
        debug_assert!(matches!(metric.kind, Kind::Seconds(_)));
        self.recorder.register_histogram(&key(metric, labels), &METADATA)
    }
}

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<_> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(metric.name, labels)
}

/// All checks, as the words of a label.
fn check_words() -> impl Iterator<Item = (Check, &'static str)> {
    Check::ALL.into_iter().map(|check| (check, check.as_str()))
}

#[cfg(test)]
mod tests;
