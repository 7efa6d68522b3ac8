package framed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

// FuzzFrames: an end keeps at most a window of each channel and has at most a window of credit,
// whatever the other end sends. The bytes of a channel come out as they came in.
func FuzzFrames(f *testing.F) {
	frame := func(ch Channel, payload ...byte) []byte {
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(payload)+1)), append([]byte{byte(ch)}, payload...)...)
	}
	f.Add(bytes.Join([][]byte{frame(Stdin, 'a'), frame(Stdin, 'b'), frame(ended, byte(Stdin))}, nil))
	f.Add(bytes.Join([][]byte{frame(credit, byte(Stdout), 255, 255, 255, 255), frame(credit, byte(Stdout))}, nil))
	f.Add(bytes.Join([][]byte{frame(Stdout, 'x'), frame(ended), frame(ended, byte(Stderr)), frame(99, 1)}, nil))
	f.Add(bytes.Join([][]byte{frame(ended, byte(Stdin)), frame(Stdin, 'l'), frame(Status, '{'), frame(Resize)}, nil))
	f.Fuzz(func(t *testing.T, stream []byte) {
		controls := 0
		c := &Conn{in: map[Channel]*inbound{}, out: map[Channel]*outbound{}}
		c.control = func(ch Channel, payload []byte) {
			if controls++; ch != Status && ch != Resize && ch != Signal {
				t.Errorf("channel %d was handed out as a control", ch)
			}
			if s := StatusOf(payload); ch == Status && s != nil && len(payload) == 0 {
				t.Error("an empty frame is a status")
			}
		}
		c.in[Stdin] = newInbound(c, Stdin)
		c.out[Stdout] = newOutbound(c, Stdout)
		var sent []byte // on Stdin, before its end
		open := true
		for len(stream) >= 2 {
			n := min(int(binary.BigEndian.Uint16(stream)), len(stream)-2)
			message := stream[2 : 2+n]
			stream = stream[2+n:]
			if len(message) == 0 {
				continue // receive refuses it
			}
			if err := c.take(Channel(message[0]), message[1:]); err != nil {
				break // the connection ends
			}
			switch {
			case Channel(message[0]) == Stdin && open:
				sent = append(sent, message[1:]...)
			case Channel(message[0]) == ended:
				open = false
			}
			if c.out[Stdout].credit > Window {
				t.Fatalf("%d bytes of credit, more than a window", c.out[Stdout].credit)
			}
			if c.in[Stdin].bytes > Window {
				t.Fatalf("%d bytes are kept, more than a window", c.in[Stdin].bytes)
			}
		}
		c.in[Stdin].fail(errors.New("over"))
		var got []byte
		for len(got) < min(len(sent), Window/8) { // below the quarter that sends credit
			p := make([]byte, 1000)
			n, err := c.in[Stdin].Read(p)
			if got = append(got, p[:n]...); err != nil {
				break
			}
		}
		if !bytes.HasPrefix(sent, got) || len(sent) < Window/8 && len(got) != len(sent) {
			t.Errorf("sent %d bytes, got %d others", len(sent), len(got))
		}
	})
}

// FuzzPortHead: an agent reads the port that was asked for, and a user reads the refusal that was
// given, or at most maxRefusal bytes of it.
func FuzzPortHead(f *testing.F) {
	f.Add(uint16(0), "")
	f.Add(uint16(8888), "nothing listens on port 8888")
	f.Add(uint16(65535), string(bytes.Repeat([]byte("x"), 70_000)))
	f.Fuzz(func(t *testing.T, port uint16, refusal string) {
		user, agent := net.Pipe()
		defer user.Close()
		answered := make(chan error, 1)
		go func() {
			defer agent.Close()
			got, err := TakePort(agent)
			if err == nil && got != int(port) {
				err = errors.New("the agent read another port")
			}
			if err == nil && refusal != "" {
				err = AnswerPort(agent, errors.New(refusal))
			} else if err == nil {
				err = AnswerPort(agent, nil)
			}
			answered <- err
		}()
		err := AskPort(user, int(port))
		if e := <-answered; e != nil {
			t.Fatal(e)
		}
		want := refusal[:min(len(refusal), maxRefusal)]
		if (err == nil) != (refusal == "") || err != nil && err.Error() != want {
			t.Errorf("the refusal %.40q arrives as %.40v", refusal, err)
		}
		if n, err := io.Copy(io.Discard, user); n != 0 || err != nil {
			t.Errorf("%d bytes are left of the head, %v", n, err)
		}
	})
}
