package temporaldev

import (
	"fmt"
	"runtime"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/primitives"
)

const (
	// The names of the stores in the server's configuration, and of their databases without a prefix.
	mainStore       = "temporal"
	visibilityStore = "temporal_visibility"

	// historyShards can never change once a database was used: the server stores the number on
	// its first start and ignores the configuration from then on. 64 was the fastest of the
	// numbers tried on two cores.
	historyShards = 64

	// Each of the four services opens pools of its own, so the server holds at
	// most 4*(mostConns+visibilityConns) = 100 connections.
	mostConns       = 20
	visibilityConns = 5

	// Connections beyond idleConns are closed after a burst, and every connection is closed after
	// connLife: PostgreSQL keeps all plans of a connection in that connection's process for as
	// long as the connection stays open.
	idleConns = 8
	connLife  = 10 * time.Minute
)

// mainConns returns the size of a service's pool for the main database. Transactions beyond
// a few for each core only compete for it: on two cores, 6 connections instead of 20 settled
// a quarter more jobs under overload.
func mainConns() int { return min(mostConns, 3*runtime.GOMAXPROCS(0)) }

// services in the order in which their ports are given out.
var services = [...]primitives.ServiceName{
	primitives.FrontendService, primitives.HistoryService, primitives.MatchingService, primitives.WorkerService,
}

// address returns an address on the loopback interface.
func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// sqlConfig returns the configuration of one of the server's databases. conns is the size of each
// pool; the server opens a pool for each service.
func (s store) sqlConfig(database string, conns int) *config.SQL {
	return &config.SQL{
		PluginName:        postgresql.PluginNamePGX,
		DatabaseName:      database,
		ConnectAddr:       s.address,
		ConnectProtocol:   "tcp",
		ConnectAttributes: s.attributes,
		User:              s.user,
		Password:          s.password,
		MaxConns:          conns,
		MaxIdleConns:      min(conns, idleConns),
		MaxConnLifetime:   connLife,
	}
}

// serverConfig describes one server. All four services are on loopback, but the frontend may listen elsewhere.
// ports[i] belongs to services[i].
func (s *Server) serverConfig(st store, ports [len(services)]int) *config.Config {
	workflows, visibility := st.databases()
	cfg := &config.Config{
		Persistence: config.Persistence{
			DefaultStore:     mainStore,
			VisibilityStore:  visibilityStore,
			NumHistoryShards: historyShards,
			DataStores: map[string]config.DataStore{
				mainStore:       {SQL: st.sqlConfig(workflows, mainConns())},
				visibilityStore: {SQL: st.sqlConfig(visibility, visibilityConns)},
			},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        "active",
			CurrentClusterName:       "active",
			ClusterInformation: map[string]cluster.ClusterInformation{
				"active": {Enabled: true, InitialFailoverVersion: 1, RPCAddress: s.Address()},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Archival: config.Archival{
			History:    config.HistoryArchival{State: "disabled"},
			Visibility: config.VisibilityArchival{State: "disabled"},
		},
		NamespaceDefaults: config.NamespaceDefaults{
			Archival: config.ArchivalNamespaceDefaults{
				History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
				Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
			},
		},
		PublicClient: config.PublicClient{HostPort: s.Address()},
		Services:     map[string]config.Service{},
	}
	// The server allows its services twice this time to start, and at least 15 s, which a busy machine
	// exceeds. Nothing else reads it: no service joins a ring.
	cfg.Global.Membership.MaxJoinDuration = startLimit
	for i, name := range services {
		cfg.Services[string(name)] = config.Service{RPC: config.RPC{GRPCPort: ports[i], BindOnLocalHost: true}}
	}
	if s.bind != "" {
		rpc := config.RPC{GRPCPort: ports[0], BindOnIP: s.bind}
		cfg.Services[string(primitives.FrontendService)] = config.Service{RPC: rpc}
	}
	if s.tls != nil {
		cfg.Global.TLS = s.tls.config()
	}
	if s.metrics != "" {
		cfg.Global.Metrics = &metrics.Config{Prometheus: &metrics.PrometheusConfig{
			Framework: metrics.FrameworkOpentelemetry, ListenAddress: s.metrics,
		}}
	}
	return cfg
}

// staticHosts replaces the membership protocol of a real cluster: every service runs in this
// process.
func (s *Server) staticHosts(ports [len(services)]int) map[primitives.ServiceName]static.Hosts {
	hosts := map[primitives.ServiceName]static.Hosts{}
	for i, name := range services {
		hosts[name] = static.SingleLocalHost(address(ports[i]))
	}
	hosts[primitives.FrontendService] = static.SingleLocalHost(s.Address())
	return hosts
}

// The limits of the server's caches of workflows. The server's own limits are for hosts that run
// nothing else: it would keep 128,000 workflows for an hour after their end, gigabytes of memory.
//
// Each cached workflow has about a kilobyte of events in encoded form, and several times that in
// memory. So the events of cachedWorkflows workflows take 6 MiB. Each step of a workflow outside
// the cache takes nine queries, which doubles the cost of the step. Batches are cached only for
// other data centres, of which a development server has none.
const (
	cachedWorkflows    = 6000
	cachedEventBytes   = 6 << 20
	cachedBatchesBytes = 1 << 20
)

// unlimited is a rate that one machine never reaches. The server's own limits
// protect a shared installation; here they would only skew load tests.
const unlimited = 1_000_000

// dynamicConfig returns the settings that the server would otherwise watch in a file.
func dynamicConfig() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		// A timer fires up to this much late. The default of 1 s makes every
		// short timer, retry and test a second long.
		dynamicconfig.TimerProcessorMaxTimeShift.Key(): time.Millisecond,

		// A shard whose statement takes longer is given up and acquired again, with more statements. With
		// the default of 5 s a busy machine never comes to own all shards.
		dynamicconfig.ShardIOTimeout.Key(): 30 * time.Second,

		// One host serves all partitions: more of them only cost polls.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,

		dynamicconfig.HistoryCacheHostLevelMaxSize.Key():     cachedWorkflows,
		dynamicconfig.EnableHostLevelEventsCache.Key():       true,
		dynamicconfig.EventsHostLevelCacheMaxSizeBytes.Key(): cachedEventBytes,
		dynamicconfig.XDCCacheMaxSizeBytes.Key():             cachedBatchesBytes,

		dynamicconfig.FrontendRPS.Key():                                         unlimited,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():                  unlimited,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key():        unlimited,
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key(): 50_000,
		dynamicconfig.HistoryRPS.Key():                                          unlimited,
		dynamicconfig.MatchingRPS.Key():                                         unlimited,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                           unlimited,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                            unlimited,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                           unlimited,
		dynamicconfig.WorkerPersistenceMaxQPS.Key():                             unlimited,
		dynamicconfig.VisibilityPersistenceMaxReadQPS.Key():                     unlimited,
		dynamicconfig.VisibilityPersistenceMaxWriteQPS.Key():                    unlimited,

		// It would ask a host on the internet.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
	}
}
