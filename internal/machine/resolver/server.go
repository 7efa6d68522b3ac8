package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/lib/netns"
	"berth/internal/machine/firewall"
)

// Networks are the job networks of a machine, and the addresses that they reach. *firewall.Table implements it.
type Networks interface {
	// Find returns the network with the address of a container.
	Find(container netip.Addr) (firewall.Network, bool)
	// Reaches reports whether the containers of a network may reach an address that a name has.
	Reaches(n firewall.Network, name string, a netip.Addr) bool
	// Open returns once the containers of the network on a bridge can connect to addresses of a listed name, and can
	// for the TTL at least.
	Open(ctx context.Context, bridge, name string, list []netip.Addr, ttl time.Duration) error
}

// Options configures a Server. Upstreams is required.
type Options struct {
	// Owner determines the port: the server of the next process mostly gets the same one.
	Owner string
	// Upstreams are the name servers of the host, in the order in which they are asked.
	Upstreams []netip.AddrPort
	// NetNS is the path of the network namespace of the bridges; "": the process's own.
	NetNS  string
	Logger *slog.Logger // nil: discard
}

// Ports of servers: below the ports that systems give to clients by default, so that no other program gets the
// port while the agent is restarted, and off the default ports of gangs.
const (
	firstPort  = 24000
	countPorts = 4000
	triedPorts = 50
)

// Server answers questions. All methods may be called concurrently.
type Server struct {
	opts     Options
	log      *slog.Logger
	packets  *net.UDPConn
	streams  *net.TCPListener
	limits   *limiter
	networks Networks
	refused  atomic.Pointer[func(n firewall.Network, name string)]

	ctx  context.Context // of questions in progress
	stop context.CancelFunc
	all  sync.WaitGroup
}

// Listen opens the port of a server. Questions wait in the socket until Start.
func Listen(o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o, log: o.Logger, limits: newLimiter(time.Now)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	h := fnv.New32a()
	_, _ = h.Write([]byte(o.Owner))
	start := int(h.Sum32() % countPorts)
	var err error
	for i := range triedPorts {
		if err = s.listen(firstPort + (start+i)%countPorts); err == nil {
			return s, nil
		}
	}
	s.stop()
	return nil, fmt.Errorf("listen for questions about names: %w", err)
}

// listen opens one port for both protocols.
func (s *Server) listen(port int) error {
	return netns.Do(s.opts.NetNS, func() error {
		packets, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		if err != nil {
			return err
		}
		streams, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port})
		if err != nil {
			return errors.Join(err, packets.Close())
		}
		s.packets, s.streams = packets, streams
		return nil
	})
}

// Port is the port of the server on all addresses of the host. The table must keep others away from it.
func (s *Server) Port() uint16 {
	return uint16(s.streams.Addr().(*net.TCPAddr).Port)
}

// OnRefused sets the function that is called for each question about a name that the policy of its network does not
// list.
func (s *Server) OnRefused(refused func(n firewall.Network, name string)) { s.refused.Store(&refused) }

// Start answers questions of the containers of networks until Close. It is called once.
func (s *Server) Start(networks Networks) {
	s.networks = networks
	s.all.Go(s.servePackets)
	s.all.Go(s.serveStreams)
}

// Close ends the server and awaits the questions in progress, which get no answer.
func (s *Server) Close() error {
	s.stop()
	err := errors.Join(s.packets.Close(), s.streams.Close())
	s.all.Wait()
	return err
}

// servePackets answers questions over UDP.
func (s *Server) servePackets() {
	for {
		buffer := make([]byte, maxQuestion+1)
		n, from, err := s.packets.ReadFromUDPAddrPort(buffer)
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			s.log.Warn("cannot read a question about a name", "err", err)
			select { // a broken socket must not take a core
			case <-s.ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		container := from.Addr().Unmap()
		if _, known := s.networks.Find(container); !known {
			continue // a stranger gets no answer
		}
		done, ok := s.limits.take(container)
		if !ok {
			continue
		}
		s.all.Go(func() {
			defer done()
			if a := s.answer(s.ctx, container, buffer[:n], false); a != nil {
				_, _ = s.packets.WriteToUDPAddrPort(a, from) // the container asks again
			}
		})
	}
}

// idle is how long a TCP connection of a container may send no question.
const idle = 10 * time.Second

// serveStreams answers questions over TCP.
func (s *Server) serveStreams() {
	for {
		conn, err := s.streams.AcceptTCP()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			s.log.Warn("cannot accept a connection with questions about names", "err", err)
			select {
			case <-s.ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		container := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		_, known := s.networks.Find(container)
		done, ok := func() {}, known
		if known {
			done, ok = s.limits.connect(container)
		}
		if !ok {
			_ = conn.Close()
			continue
		}
		s.all.Go(func() {
			defer done()
			defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
			defer conn.Close()
			s.serveStream(conn, container)
		})
	}
}

// serveStream answers the questions of one connection, one after the other. A question beyond the limits ends it.
func (s *Server) serveStream(conn net.Conn, container netip.Addr) {
	for {
		_ = conn.SetDeadline(time.Now().Add(idle))
		packet, err := readMessage(conn, maxQuestion)
		if err != nil {
			return
		}
		done, ok := s.limits.take(container)
		if !ok {
			return
		}
		a := s.answer(s.ctx, container, packet, true)
		done()
		if a == nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(idle))
		if writeMessage(conn, a) != nil {
			return
		}
	}
}

// readMessage reads a message in the framing of DNS over TCP.
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > limit {
		return nil, fmt.Errorf("message of %d bytes: at most %d are allowed", n, limit)
	}
	m := make([]byte, n)
	_, err := io.ReadFull(r, m)
	return m, err
}

// writeMessage writes a message in the framing of DNS over TCP.
func writeMessage(w io.Writer, m []byte) error {
	framed := make([]byte, 0, len(m)+2)
	_, err := w.Write(append(binary.BigEndian.AppendUint16(framed, uint16(len(m))), m...))
	return err
}
