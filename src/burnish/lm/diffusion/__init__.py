"""Masked diffusion models as language models: conversion, decoding, bounds on likelihoods."""
