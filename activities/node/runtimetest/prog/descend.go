package prog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// descent is one rank of a small data-parallel gradient descent. Each rank has a part of
// the data. In each step the ranks sum their gradients over TCP, in the order of their
// numbers, so that the result does not depend on their speed: floating-point addition is
// not associative. The ranks meet at MASTER_ADDR:MASTER_PORT, save step-N/ folders at the
// same steps, and resume from BERTH_RESTORED_STEP. A rank that loses another one fails.
type descent struct {
	p             *Process
	dir           string // of the checkpoints
	rank, members int
	step, steps   int
	weights       [weights]float64
	peers         []net.Conn // of rank 0: all others, by rank less one; of the others: rank 0
}

const (
	weights = 8
	samples = 4096 // of the data, over all ranks
	rate    = 0.05 // of learning
)

// noticed is the time from the loss of a peer to the failure of the other ranks. Collective
// libraries notice a loss seconds later than a container engine does.
const noticed = 2 * time.Second

// descend implements descend DIR STEPS INTERVAL SAVE_EVERY.
func descend(ctx context.Context, p *Process, args []string) int {
	steps, err1 := strconv.Atoi(args[1])
	interval, err2 := time.ParseDuration(args[2])
	saveEvery, err3 := strconv.Atoi(args[3])
	dir, err4 := p.WritePath(args[0])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return p.usage("descend: %v", err)
	}
	d := &descent{p: p, dir: dir, steps: steps, rank: number(p, "BERTH_MEMBER"), members: number(p, "BERTH_MEMBERS")}
	if err := d.restore(); err != nil {
		return p.fail(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := d.meet(ctx); err != nil {
		return p.fail(err)
	}
	defer d.part()
	defer context.AfterFunc(ctx, d.part)() // the other ranks see a killed one's connections close at once
	p.say("together at step %d", d.step)
	for d.step < d.steps {
		if !pause(ctx, interval) {
			return 1
		}
		d.hang(ctx)
		sum, err := d.reduce(gradient(d.weights, d.rank, d.members))
		if err != nil {
			pause(ctx, noticed)
			return p.fail(fmt.Errorf("step %d: %w", d.step+1, err))
		}
		d.descend(sum)
		p.say("step %d", d.step)
		if d.step%saveEvery == 0 {
			if err := d.save(); err != nil {
				return p.fail(err)
			}
		}
	}
	// The last number of a vector, unused by gradients, carries the loss.
	loss, err := d.reduce([weights + 1]float64{weights: lossOf(d.weights, d.rank, d.members)})
	if err != nil {
		return p.fail(err)
	}
	p.say("loss %x", loss[weights])
	return 0
}

// hang stops making progress, in the first attempt, before the step HANG_STEP of the rank
// HANG_MEMBER. HANG chooses how: spin, halt or sleep. The other ranks wait for this one.
func (d *descent) hang(ctx context.Context) {
	how, ok := d.p.Env("HANG")
	if !ok || number(d.p, "BERTH_ATTEMPT") != 1 || d.rank != number(d.p, "HANG_MEMBER") ||
		d.step+1 != number(d.p, "HANG_STEP") {
		return
	}
	switch how {
	case "spin":
		d.p.Spin(ctx)
	case "halt":
		d.p.Halt(ctx)
	default:
		pause(ctx, time.Hour)
	}
}

// DescendResult returns the line that every rank must print at the end, however often the
// gang was interrupted. It sums in the same order as reduce, so the result is equal to the
// last bit.
func DescendResult(steps, members int) string {
	d := descent{members: members}
	add := func(of func(rank int) [weights + 1]float64) (sum [weights + 1]float64) {
		for rank := range members {
			sum = plus(sum, of(rank))
		}
		return sum
	}
	for range steps {
		d.descend(add(func(rank int) [weights + 1]float64 { return gradient(d.weights, rank, members) }))
	}
	loss := add(func(rank int) [weights + 1]float64 {
		return [weights + 1]float64{weights: lossOf(d.weights, rank, members)}
	})
	return fmt.Sprintf("loss %x", loss[weights])
}

// number returns a variable as a number, 0 if unset or malformed.
func number(p *Process, name string) int {
	v, _ := p.Env(name)
	n, _ := strconv.Atoi(v)
	return n
}

// sample returns a point of the data and its value, the same for the same i: a linear
// congruential generator needs no files. The true weights are 1, 2, 3 and so on.
func sample(i int) (x [weights]float64, y float64) {
	seed := uint64(i)*6364136223846793005 + 1442695040888963407
	for k := range x {
		seed = seed*6364136223846793005 + 1442695040888963407
		x[k] = float64(seed>>40)/(1<<23) - 1
		y += x[k] * float64(k+1)
	}
	return x, y
}

// gradient returns the contribution of one rank's samples, which are every members-th; the
// last number stays 0.
func gradient(w [weights]float64, rank, members int) (g [weights + 1]float64) {
	for i := rank; i < samples; i += members {
		x, y := sample(i)
		off := -y
		for k := range x {
			off += w[k] * x[k]
		}
		for k := range x {
			g[k] += 2 * off * x[k] / samples
		}
	}
	return g
}

// lossOf returns the contribution of one rank's samples to the mean squared error.
func lossOf(w [weights]float64, rank, members int) (loss float64) {
	for i := rank; i < samples; i += members {
		x, y := sample(i)
		off := -y
		for k := range x {
			off += w[k] * x[k]
		}
		loss += off * off / samples
	}
	return loss
}

// plus adds two vectors.
func plus(a, b [weights + 1]float64) [weights + 1]float64 {
	for k := range a {
		a[k] += b[k]
	}
	return a
}

// descend moves the weights against the gradient: one step.
func (d *descent) descend(g [weights + 1]float64) {
	for k := range d.weights {
		d.weights[k] -= rate * g[k]
	}
	d.step++
}

// meet connects every rank to rank 0, which waits for all. Ranks dial until rank 0 listens.
func (d *descent) meet(ctx context.Context) error {
	host, _ := d.p.Env("MASTER_ADDR")
	port, _ := d.p.Env("MASTER_PORT")
	if d.rank > 0 {
		dialer := net.Dialer{}
		for {
			c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
			if err == nil {
				d.peers = []net.Conn{c}
				return binary.Write(c, binary.BigEndian, int64(d.rank))
			}
			if !pause(ctx, 20*time.Millisecond) {
				return err
			}
		}
	}
	config := net.ListenConfig{}
	l, err := config.Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return err
	}
	defer l.Close()
	// Accept does not watch ctx.
	defer context.AfterFunc(ctx, func() { l.Close() })()
	d.peers = make([]net.Conn, d.members-1)
	for range d.peers {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		var rank int64
		if err := binary.Read(c, binary.BigEndian, &rank); err != nil {
			return err
		}
		if rank < 1 || int(rank) >= d.members || d.peers[rank-1] != nil {
			return fmt.Errorf("a stranger calls itself rank %d", rank)
		}
		d.peers[rank-1] = c
	}
	return nil
}

// part closes the connections, on which reads and writes under way then fail.
func (d *descent) part() {
	for _, c := range d.peers {
		if c != nil {
			c.Close()
		}
	}
}

// reduce sums the vectors of all ranks, at rank 0, and returns the sum to every rank. The
// calls of all ranks must match, as with an all-reduce.
func (d *descent) reduce(mine [weights + 1]float64) (sum [weights + 1]float64, err error) {
	if d.rank > 0 {
		if err := binary.Write(d.peers[0], binary.BigEndian, mine); err != nil {
			return sum, err
		}
		return sum, binary.Read(d.peers[0], binary.BigEndian, &sum)
	}
	sum = plus(sum, mine)
	for _, c := range d.peers {
		var theirs [weights + 1]float64
		if err := binary.Read(c, binary.BigEndian, &theirs); err != nil {
			return sum, err
		}
		sum = plus(sum, theirs)
	}
	for _, c := range d.peers {
		if err := binary.Write(c, binary.BigEndian, sum); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// restore reads the rank's part of the checkpoint that BERTH_RESTORED_STEP names, if any.
func (d *descent) restore() error {
	from, _ := d.p.Env("BERTH_RESTORED_STEP")
	if from == "" {
		return nil
	}
	f, err := os.Open(filepath.Join(d.dir, "step-"+from, "weights"))
	if err != nil {
		return fmt.Errorf("restore step %s: %w", from, err)
	}
	defer f.Close()
	if err := binary.Read(f, binary.BigEndian, &d.weights); err != nil {
		return fmt.Errorf("restore step %s: %w", from, err)
	}
	d.step, err = strconv.Atoi(from)
	return err
}

// save writes the rank's part of a checkpoint. DONE comes last, so an interrupted save is
// none.
func (d *descent) save() error {
	dir := filepath.Join(d.dir, fmt.Sprintf("step-%d", d.step))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := binary.Append(nil, binary.BigEndian, d.weights)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "weights"), b, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "DONE"), nil, 0o644)
}
