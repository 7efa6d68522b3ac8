package firewall

// BreakWatch makes the present subscription fail.
func (t *Table) BreakWatch() { _ = t.subscription().close() }
