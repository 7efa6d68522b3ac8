package firewall_test

import (
	"net/netip"
	"strings"
	"testing"

	"berth/internal/machine/firewall"
	"berth/spec"
)

// A network is removed and made again. The removal's late word does not drop the new rules, and
// the new subnet and policy replace the old ones.
func TestANetworkThatIsMadeAgainIsWalled(t *testing.T) {
	t.Parallel()
	b := newBench(t, spec.Network{})
	b.hold(t)
	list := func() string { return b.host.Run("nft", "list", "table", "inet", b.table.Name()) }
	n := b.networks()[0]
	mark := b.table.Mark() // then the engine removes the network, and a member makes it again
	if err := b.table.Add(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Remove(t.Context(), mark, n.Bridge); err != nil {
		t.Fatal(err)
	}
	if err := b.table.Restore(t.Context(), mark, nil); err != nil {
		t.Fatal(err)
	}
	b.verify(t, []string{public + ":80"}, lan+":80")
	n.Subnet, n.Policy = netip.MustParsePrefix("10.71.2.0/29"), spec.Network{Egress: spec.EgressNone}
	if err := b.table.Add(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := list(); strings.Contains(got, own.String()) || !strings.Contains(got, n.Subnet.String()) ||
		!strings.Contains(got, "from_none") {
		t.Errorf("after a change the table is\n%s", got)
	}
	n.Subnet = own
	if err := b.table.Restore(t.Context(), b.table.Mark(), []firewall.Network{n}); err != nil {
		t.Fatal(err)
	}
	if got := list(); !strings.Contains(got, own.String()) {
		t.Errorf("after a comparison the table is\n%s", got)
	}
	if err := b.table.Remove(t.Context(), b.table.Mark(), n.Bridge); err != nil {
		t.Fatal(err)
	}
	if got := list(); strings.Contains(got, n.Bridge) {
		t.Errorf("after the removal the table is\n%s", got)
	}
}
