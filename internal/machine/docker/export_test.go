package docker

// PullWaiters is how many callers wait for pulls.
func (e *Engine) PullWaiters() int {
	e.pulls.mu.Lock()
	defer e.pulls.mu.Unlock()
	n := 0
	for _, p := range e.pulls.byKey {
		n += p.waiters
	}
	return n
}
