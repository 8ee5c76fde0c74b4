"""Hugging Face Mixture-of-Experts models whose experts stay on disk."""

from strideweave.integrations.transformers.experts import ExpertStore
from strideweave.integrations.transformers.loader import from_pretrained
from strideweave.integrations.transformers.plan import ExpertPlan, PlanRefused, plan
from strideweave.integrations.transformers.sources import UnsupportedModel

__all__ = ["ExpertPlan", "ExpertStore", "PlanRefused", "UnsupportedModel", "from_pretrained", "plan"]
