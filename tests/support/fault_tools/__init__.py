"""What tests break things with: networks, processes, limits; and what they must leave behind."""
