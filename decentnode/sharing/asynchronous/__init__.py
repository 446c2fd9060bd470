"""Schemes of the asynchronous time model, one per file (docs/asynchronous.md)."""

from decentnode.sharing.asynchronous.ad_psgd import AdPsgd
from decentnode.sharing.asynchronous.async_fed_avg import AsyncFedAvg
from decentnode.sharing.asynchronous.base import AsyncSharing
from decentnode.sharing.asynchronous.div_share import DivShare
from decentnode.sharing.asynchronous.epidemic_push import EpidemicPush
from decentnode.sharing.asynchronous.push_gossip import PushGossip
from decentnode.sharing.asynchronous.swift import Swift

__all__ = ["AdPsgd", "AsyncFedAvg", "AsyncSharing", "DivShare", "EpidemicPush", "PushGossip", "Swift"]
