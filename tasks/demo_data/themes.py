"""Words of the synthetic catalogue: taste clusters with their category and tags, and titles."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """What the items of one taste cluster have in common."""

    name: str
    category: str
    tags: tuple[str, ...]


THEMES: tuple[Theme, ...] = (
    Theme("jazz", "music", ("swing", "bebop", "saxophone", "trio", "improvised")),
    Theme("gardening", "home", ("seeds", "roses", "compost", "greenhouse", "herbs")),
    Theme("climbing", "sport", ("boulder", "rope", "alpine", "grip", "summit")),
    Theme("baking", "kitchen", ("sourdough", "cake", "yeast", "oven", "pastry")),
    Theme("astronomy", "science", ("telescope", "nebula", "planet", "orbit", "eclipse")),
    Theme("noir", "film", ("detective", "night", "betrayal", "shadow", "heist")),
    Theme("chess", "games", ("opening", "endgame", "gambit", "rook", "blitz")),
    Theme("travel", "outdoors", ("island", "train", "hostel", "map", "harbour")),
    Theme("opera", "music", ("soprano", "aria", "overture", "libretto", "chorus")),
    Theme("carpentry", "home", ("oak", "chisel", "joint", "lathe", "varnish")),
    Theme("running", "sport", ("marathon", "trail", "pace", "sprint", "shoes")),
    Theme("coffee", "kitchen", ("espresso", "roast", "filter", "arabica", "crema")),
    Theme("biology", "science", ("cell", "fossil", "genome", "insect", "evolution")),
    Theme("comedy", "film", ("slapstick", "satire", "buddy", "parody", "stage")),
    Theme("puzzles", "games", ("jigsaw", "riddle", "maze", "logic", "crossword")),
    Theme("sailing", "outdoors", ("yacht", "knot", "regatta", "anchor", "tide")),
    Theme("techno", "music", ("synth", "club", "loop", "bass", "modular")),
    Theme("design", "home", ("lamp", "chair", "poster", "linen", "ceramic")),
    Theme("cycling", "sport", ("peloton", "gravel", "derailleur", "climb", "velodrome")),
    Theme("spices", "kitchen", ("cumin", "saffron", "chilli", "curry", "cardamom")),
    Theme("robotics", "science", ("servo", "sensor", "gripper", "drone", "soldering")),
    Theme("western", "film", ("saloon", "frontier", "duel", "canyon", "outlaw")),
    Theme("strategy", "games", ("empire", "dice", "siege", "trade", "hexes")),
    Theme("birding", "outdoors", ("binoculars", "owl", "wetland", "migration", "nest")),
)

ADJECTIVES: tuple[str, ...] = (
    "Amber", "Bold", "Calm", "Distant", "Early", "Faded", "Gentle", "Hidden", "Inner", "Jolly",
    "Keen", "Little", "Misty", "Noble", "Open", "Quiet", "Restless", "Silver", "Tidal", "Vivid",
    "Wandering", "Young", "Northern", "Second",
)  # fmt: skip

NOUNS: tuple[str, ...] = (
    "Arch", "Bridge", "Circle", "Door", "Ember", "Field", "Garden", "Horizon", "Idea", "Journey",
    "Kite", "Lantern", "Meadow", "Notebook", "Orchard", "Path", "Quarter", "River", "Signal",
    "Tower", "Umbrella", "Valley", "Window", "Yard", "Zephyr",
)  # fmt: skip

COUNTRIES: tuple[str, ...] = ("DE", "FR", "GB", "IN", "JP", "BR", "US", "ZA")
