"""What must hold and what it costs: decisions, rules, terms and their plain evaluation. No solver in here."""
