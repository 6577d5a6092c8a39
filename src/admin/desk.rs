//! What the admin listener can ask of a gateway.

use async_trait::async_trait;
use serde_json::Value;

use super::{AdminDesk, AdminError, ReadyCheck};
use crate::app::reload::{Reloaded, reload_now};
use crate::desk::Desk;
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::outcome::LeadStatus;
use crate::explain;
use crate::ledger::{LedgerError, SettleError};
use crate::settle::reconcile;

impl From<LedgerError> for AdminError {
    fn from(error: LedgerError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

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
            .findings(gateway.config.store.journal_entries_max, gateway.shutdown.is_draining())
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
            return Err(AdminError::NotFound);
        }
        self.gateway.ledger.set_paused(&buyer, is_paused).await?;
        self.gateway.set_paused(self.gateway.ledger.paused_buyers().await?);
        Ok(())
    }

    async fn reload(&self) -> Result<(), Vec<String>> {
        match reload_now(&self.gateway).await {
            Reloaded::InForce { .. } | Reloaded::Unchanged => Ok(()),
            Reloaded::Refused(problems) => Err(problems),
        }
    }

    async fn resolve(&self, _lead: LeadId, _buyer: BuyerId, _is_accepted: bool) -> Result<Value, AdminError> {
        Err(AdminError::NotAvailableYet)
    }

    async fn reconcile(&self, is_dry_run: bool) -> Result<Value, AdminError> {
        let report = reconcile::reconcile(&self.gateway, is_dry_run).await?;
        Ok(super::reconcile::as_json(&report))
    }
}
