"""A fingerprint of behaviour: what every recipe, judge, scorer and public function gives, in small.

`take` makes one with whatever `burnish` can be imported, `comparing` names the first cause of a
difference between two, and `python -m lab.fingerprint` does both.
"""
