package chaos_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"berth/internal/lib/failpoint"
)

// killAll kills the processes at one failpoint after another, and at any moment in between.
func (p *proof) killAll(ctx context.Context) {
	points := slices.Concat(failpoint.CloudPoints, failpoint.ScalerPoints)
	for i := 0; ctx.Err() == nil; i++ {
		if i%(len(points)+1) == len(points) {
			role := []failpoint.Process{failpoint.Worker, failpoint.Leader}[rand.IntN(2)]
			one := p.plane[role][rand.IntN(len(p.plane[role]))]
			struck := time.Now()
			one.signal(syscall.SIGKILL)
			one.wait()
			p.revive("any moment", one, struck)
			continue
		}
		point := points[i%(len(points)+1)]
		suspects, armed := p.plane[point.Process], time.Now()
		for _, s := range suspects {
			if err := s.arm(point.Name, "kill"); err != nil {
				p.fail(err)
				return
			}
		}
		for began := time.Now(); time.Since(began) < hitWait && ctx.Err() == nil; time.Sleep(hitLook) {
			if slices.ContainsFunc(suspects, func(s *program) bool { return s.hit(point.Name) }) {
				break
			}
		}
		for _, s := range suspects {
			if s.disarm(point.Name) {
				s.wait()
				p.revive(point.Name, s, armed)
			}
		}
	}
}

// revive starts a killed process again after a short time, and counts the kill.
func (p *proof) revive(point string, killed *program, since time.Time) {
	time.Sleep(time.Duration(rand.Int64N(int64(1500 * time.Millisecond))))
	if err := killed.up(); err != nil {
		p.fail(err)
	}
	p.mu.Lock()
	p.kills[point]++
	p.storms = append(p.storms, span{since, time.Now().Add(aftermath)})
	p.mu.Unlock()
	time.Sleep(time.Second + time.Duration(rand.Int64N(int64(time.Second))))
}

// killed returns the number of kills by failpoint.
func (p *proof) killed() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make(map[string]int, len(p.kills))
	for name, n := range p.kills {
		counts[name] = n
	}
	return counts
}

// hitAll reports whether processes were killed at every failpoint.
func (p *proof) hitAll() bool {
	counts := p.killed()
	for _, point := range slices.Concat(failpoint.CloudPoints, failpoint.ScalerPoints) {
		if counts[point.Name] == 0 {
			return false
		}
	}
	return true
}
