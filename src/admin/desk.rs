//! What the admin listener can ask of a gateway.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{AdminDesk, AdminError, Missing, ReadyCheck, ReloadProblem, write_place};
use crate::app::reload::{Reloaded, reload_now};
use crate::desk::Desk;
use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::lease::LeaseKey;
use crate::domain::outcome::LeadStatus;
use crate::explain;
use crate::ledger::{AttemptPlace, DoubtRow, LedgerError, SettleError};
use crate::settle::reconcile;
use crate::settle::resolve::{ResolveError, Wish, resolve};

impl From<LedgerError> for AdminError {
    fn from(error: LedgerError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<ResolveError> for AdminError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NotFound => Self::NotFound(Missing::Attempt),
            ResolveError::Conflict(why) => Self::Conflict(why),
            ResolveError::Away(error) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Doubts in one answer.
const DOUBTS_MAX: usize = 100;

impl From<SettleError> for AdminError {
    fn from(error: SettleError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[async_trait]
impl AdminDesk for Desk {
    async fn readiness(&self) -> Vec<ReadyCheck> {
        let gateway = &self.gateway;
        gateway
            .status
            .findings(
                gateway.routing().version(),
                gateway.config.store.journal_entries_max,
                gateway.shutdown.is_draining(),
            )
            .into_iter()
            .map(|finding| ReadyCheck {
                name: finding.name,
                ok: finding.is_ok,
                detail: finding.detail,
                decides: finding.decides,
            })
            .collect()
    }

    fn metrics(&self) -> String {
        self.gateway.telemetry.render()
    }

    async fn caps(&self, buyer: Option<BuyerId>) -> Result<Value, AdminError> {
        super::caps::table(&self.gateway, buyer.as_ref()).await
    }

    async fn cap_leads(&self, buyer: BuyerId, cap: CapId, after: Option<AttemptPlace>) -> Result<Value, AdminError> {
        super::caps::leads(&self.gateway, &buyer, &cap, after.as_ref()).await
    }

    async fn lead(&self, lead: LeadId) -> Result<Option<Value>, AdminError> {
        let mut detail = self.gateway.ledger.lead_detail(lead).await?;
        if detail.as_ref().is_none_or(|detail| detail.lead.status == LeadStatus::Pending) {
            // It may still be in the journal. A journal that cannot be settled now leaves what the books have.
            let _ = self.gateway.settler.settle_once().await;
            detail = self.gateway.ledger.lead_detail(lead).await?;
        }
        Ok(detail.map(|detail| explain::as_json(&detail)))
    }

    async fn set_paused(&self, buyer: BuyerId, is_paused: bool) -> Result<(), AdminError> {
        if !self.gateway.routing().compiled.routing().buyers.contains_key(&buyer) {
            return Err(AdminError::NotFound(Missing::Buyer));
        }
        self.gateway.ledger.set_paused(&buyer, is_paused).await?;
        self.gateway.set_paused(self.gateway.ledger.paused_buyers().await?);
        Ok(())
    }

    async fn reload(&self) -> Result<(), Vec<ReloadProblem>> {
        let reloaded = reload_now(&self.gateway).await;
        let lines = match reloaded.routing {
            Reloaded::InForce { .. } | Reloaded::Unchanged => Vec::new(),
            Reloaded::Refused(lines) => lines,
        };
        let routing = lines.into_iter().map(|line| ReloadProblem { part: "routing", line });
        let tls = reloaded.tls.map(|line| ReloadProblem { part: "tls", line });
        let problems: Vec<_> = routing.chain(tls).collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    async fn doubts(&self, buyer: BuyerId, after: Option<AttemptPlace>) -> Result<Value, AdminError> {
        let doubts = self.gateway.ledger.doubts(&buyer, after.as_ref(), DOUBTS_MAX).await?;
        let is_known = self.gateway.routing().compiled.routing().buyers.contains_key(&buyer);
        // A buyer that the routing no longer has may have left doubts behind.
        if doubts.is_empty() && after.is_none() && !is_known {
            return Err(AdminError::NotFound(Missing::Buyer));
        }
        let next = doubts.last().filter(|_| doubts.len() == DOUBTS_MAX).map(|last| write_place(&last.place));
        let row = |doubt: &DoubtRow| {
            json!({
                "lead_id": doubt.place.lead.to_string(),
                "sent_at": doubt.place.sent_at.to_string(),
                "counted": doubt.counted,
                "reason": doubt.reason,
            })
        };
        Ok(json!({ "doubts": doubts.iter().map(row).collect::<Vec<_>>(), "next": next }))
    }

    async fn resolve(&self, lead: LeadId, buyer: BuyerId, is_accepted: bool) -> Result<Value, AdminError> {
        let gateway = self.gateway.clone();
        let key = LeaseKey { lead, buyer: buyer.clone() };
        let wish = if is_accepted { Wish::Accepted } else { Wish::Declined };
        // An operator that hangs up does not stop half way between attempt and lead.
        let task = self.gateway.tasks.spawn(async move { resolve(&gateway, &key, wish).await });
        let resolved = task.await.map_err(|_| AdminError::Unavailable("it ended early".to_owned()))??;
        Ok(json!({
            "lead_id": lead.to_string(),
            "buyer": buyer.as_str(),
            "outcome": resolved.outcome.as_str(),
            "status": resolved.lead.as_str(),
        }))
    }

    async fn reconcile(&self, is_dry_run: bool) -> Result<Value, AdminError> {
        let report = reconcile::reconcile(&self.gateway, is_dry_run).await?;
        Ok(super::reconcile::as_json(&report))
    }
}
