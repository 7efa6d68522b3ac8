package control_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/wire"
)

// queue is a provider whose calls of Create wait until they are let go.
type queue struct {
	*faultcloud.Cloud
	out     atomic.Bool // no room
	entered atomic.Int32
	open    atomic.Pointer[chan struct{}]
}

func newQueue(s *site) *queue {
	q := &queue{Cloud: s.cloud}
	q.shut()
	return q
}

// shut makes later calls wait, and let lets the waiting ones go.
func (q *queue) shut() {
	c := make(chan struct{})
	q.open.Store(&c)
}
func (q *queue) let() { close(*q.open.Load()) }

func (q *queue) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	open := *q.open.Load()
	q.entered.Add(1)
	select {
	case <-open:
	case <-ctx.Done():
		return cloud.Instance{}, &cloud.Error{Kind: cloud.Unknown, Err: ctx.Err()}
	}
	if q.out.Load() {
		return cloud.Instance{}, &cloud.Error{Kind: cloud.Capacity, Err: errors.New("sold out")}
	}
	return q.Cloud.Create(ctx, l)
}

const crowdSize = 12

// crowd requests launches of one offering for the scaler, or for another actor.
func (s *site) crowd(actor string) (list []berth.MachineID) {
	s.t.Helper()
	for i := range crowdSize {
		list = append(list, berth.MachineID(fmt.Sprintf("crowd-%d", i)))
	}
	_, err := s.db.Launches.Request(s.t.Context(), cloud.Request{Pool: "burst", Provider: "test",
		Offering: cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand}}, list, "", actor)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// at steps the machines at once, and returns when each step has ended or waits for the cloud.
func (s *site) at(q *queue, list []berth.MachineID) chan wire.MachineStepResult {
	s.t.Helper()
	ended := make(chan wire.MachineStepResult, len(list))
	before := int(q.entered.Load())
	for _, m := range list {
		go func() {
			r, err := s.steps(q).Step(context.WithoutCancel(s.t.Context()), wire.MachineInput{Machine: m})
			if err != nil {
				s.t.Error(err)
			}
			ended <- r
		}()
	}
	for end := time.Now().Add(2 * time.Minute); len(ended)+int(q.entered.Load())-before < len(list); {
		if time.Now().After(end) {
			s.t.Fatalf("%d steps ended, %d wait for the cloud", len(ended), int(q.entered.Load())-before)
		}
		time.Sleep(time.Millisecond)
	}
	return ended
}

// rest waits for the other steps.
func rest(ended chan wire.MachineStepResult) {
	for range cap(ended) {
		<-ended
	}
}

// A cloud without room and with a slow answer is called once, also if all launches are stepped at once.
func TestAnOfferingWithoutASuccessIsTriedByOneLaunch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	q := newQueue(s)
	q.out.Store(true)
	list := s.crowd(cloud.ScalerActor)
	ended := s.at(q, list)
	if n := q.entered.Load(); n != 1 || len(ended) != crowdSize-1 {
		t.Errorf("%d calls at once", n)
	}
	q.let()
	rest(ended)
	rest(s.at(q, list))
	if n := q.entered.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	if n := s.open(); n != 0 {
		t.Errorf("%d launches are not settled", n)
	}
}

// open returns the number of launches that are not settled.
func (s *site) open() (n int) {
	s.t.Helper()
	err := s.pool.QueryRow(s.t.Context(), `SELECT count(*) FROM launches WHERE state NOT IN ('gone', 'failed')`).Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestASuccessOpensAnOfferingForAllLaunches(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	q := newQueue(s)
	list := s.crowd(cloud.ScalerActor)
	ended := s.at(q, list)
	q.let()
	rest(ended)
	q.shut()
	q.entered.Store(0)
	ended = s.at(q, list)
	if n := q.entered.Load(); n != crowdSize-1 {
		t.Errorf("%d calls at once after a success", n)
	}
	q.let()
	rest(ended)
	if n := len(s.seen().Instances); n != crowdSize {
		t.Errorf("%d instances", n)
	}
}

func TestASendWithoutAnAnswerHoldsOthersBackForSomeTimeOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	q := newQueue(s)
	list := s.crowd(cloud.ScalerActor)
	ended := s.at(q, list[:1])
	held := s.at(q, list[1:])
	if n := q.entered.Load(); n != 1 {
		t.Errorf("%d calls at once", n)
	}
	rest(held)
	s.pass(cloud.TriedFor + time.Second)
	next := s.at(q, list[1:])
	if n := q.entered.Load(); n != 2 {
		t.Errorf("%d calls, want a second one after %s", n, cloud.TriedFor)
	}
	q.let()
	rest(ended)
	rest(next)
}

func TestLaunchesOfAnAdminAreNotHeldBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	q := newQueue(s)
	ended := s.at(q, s.crowd("user:test"))
	if n := q.entered.Load(); n != crowdSize {
		t.Errorf("%d calls at once", n)
	}
	q.let()
	rest(ended)
}
