"""The peers, each in its fastest documented way. A module here needs its peer to be imported."""
