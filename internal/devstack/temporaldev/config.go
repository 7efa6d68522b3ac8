package temporaldev

import (
	"fmt"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/primitives"
)

const (
	mainDatabase       = "temporal"
	visibilityDatabase = "temporal_visibility"

	// historyShards can never change once a database was used: the server
	// stores it on first start and ignores the configuration from then on. 64
	// was the fastest of those tried on two cores.
	historyShards = 64

	// Each of the four services opens pools of its own, so the server holds at
	// most 4*(mainConns+visibilityConns) = 100 connections.
	mainConns       = 20
	visibilityConns = 5

	// What a burst needs beyond idleConns is closed after it, and every
	// connection after connLife: PostgreSQL keeps what a connection has once
	// planned in a process of its own, for as long as it stays open.
	idleConns = 8
	connLife  = 10 * time.Minute
)

// services in the order in which their ports are given out.
var services = [...]primitives.ServiceName{
	primitives.FrontendService, primitives.HistoryService, primitives.MatchingService, primitives.WorkerService,
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// sqlConfig is how the server reaches one of its databases.
func (s store) sqlConfig(database string, conns int) *config.SQL {
	return &config.SQL{
		PluginName:      postgresql.PluginNamePGX,
		DatabaseName:    database,
		ConnectAddr:     s.address,
		ConnectProtocol: "tcp",
		User:            s.user,
		Password:        s.password,
		MaxConns:        conns,
		MaxIdleConns:    min(conns, idleConns),
		MaxConnLifetime: connLife,
	}
}

// serverConfig describes one server with all four services on loopback.
// ports[i] belongs to services[i].
func serverConfig(s store, ports [len(services)]int) *config.Config {
	cfg := &config.Config{
		Persistence: config.Persistence{
			DefaultStore:     mainDatabase,
			VisibilityStore:  visibilityDatabase,
			NumHistoryShards: historyShards,
			DataStores: map[string]config.DataStore{
				mainDatabase:       {SQL: s.sqlConfig(mainDatabase, mainConns)},
				visibilityDatabase: {SQL: s.sqlConfig(visibilityDatabase, visibilityConns)},
			},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        "active",
			CurrentClusterName:       "active",
			ClusterInformation: map[string]cluster.ClusterInformation{
				"active": {Enabled: true, InitialFailoverVersion: 1, RPCAddress: address(ports[0])},
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
		PublicClient: config.PublicClient{HostPort: address(ports[0])},
		Services:     map[string]config.Service{},
	}
	for i, name := range services {
		cfg.Services[string(name)] = config.Service{RPC: config.RPC{GRPCPort: ports[i], BindOnLocalHost: true}}
	}
	return cfg
}

// staticHosts replaces the gossip of a real cluster: every service is here.
func staticHosts(ports [len(services)]int) map[primitives.ServiceName]static.Hosts {
	hosts := map[primitives.ServiceName]static.Hosts{}
	for i, name := range services {
		hosts[name] = static.SingleLocalHost(address(ports[i]))
	}
	return hosts
}

// What the server remembers of workflows so as not to read it again. Its own
// limits are for hosts that do nothing else: it would keep 128,000 workflows for
// an hour after their end, gigabytes of them.
//
// Of each workflow about a kilobyte of events is kept, as they are sent; in memory they are several
// times larger. So the events of as many workflows as are remembered take 6 MiB.
// A workflow that is not remembered is read in nine queries at each step, which doubles the cost of a step.
// Other data centres, for which the server would keep batches as well, there are none.
const (
	cachedWorkflows    = 6000
	cachedEventBytes   = 6 << 20
	cachedBatchesBytes = 1 << 20
)

// unlimited is a rate that one machine never reaches. The server's own limits
// protect a shared installation; here they would only skew load tests.
const unlimited = 1_000_000

func dynamicConfig() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		// A timer fires up to this much late. The default of 1 s makes every
		// short timer, retry and test a second long.
		dynamicconfig.TimerProcessorMaxTimeShift.Key(): time.Millisecond,

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
