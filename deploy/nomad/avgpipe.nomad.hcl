# A daemon on each host of a Nomad cluster, together one cluster of avgpipe:
#
#   avgpiped authority ./authority
#   nomad var put nomad/jobs/avgpipe crt=@authority/authority.crt key=@authority/authority.key
#   nomad job run -var first=node1.example.com -var user_id=998 \
#     -var hosts=node1.example.com:7700,node2.example.com:7700 deploy/nomad/avgpipe.nomad.hcl
#
# Installed on the hosts: the programs, the user avgpipe and /var/lib/avgpipe (make install, with avgpiped.service disabled), and raw_exec enabled in
# Nomad's clients. The state is the host's, so it is a system job, whose allocations never move.

variable "first" {
  type        = string
  description = "the host that begins the cluster, as nomad node status names it"
}

variable "hosts" {
  type        = string
  description = "HOST:PORT of nodes, commas between them; the first one's among them"
}

variable "user_id" {
  type        = number
  description = "of the user avgpipe on the hosts (id -u avgpipe)"
}

job "avgpipe" {
  type = "system"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  # One host at a time, so that a majority of the voters stays.
  update {
    max_parallel = 1
    stagger      = "2m"
  }

  group "node" {
    network {
      port "avgpipe" {
        static = 7700
      }
      port "metrics" {
        static = 9464
      }
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "10s"
      mode     = "delay"
    }

    task "avgpiped" {
      driver = "raw_exec"
      user   = "avgpipe"
      # A stop takes at least 10 s and three times the longest commit yet; the client's max_kill_timeout must allow it.
      kill_signal  = "SIGTERM"
      kill_timeout = "120s"

      config {
        command = "/bin/sh"
        args    = ["${NOMAD_TASK_DIR}/start.sh"]
      }

      # Where a node is a member already, init and join change nothing. The daemon takes the place of the shell, and gets its signals.
      template {
        destination = "local/start.sh"
        data        = <<-EOF
          set -eu
          config=$NOMAD_TASK_DIR/avgpiped.yaml authority=$NOMAD_SECRETS_DIR
          if [ "$HOST" != "$FIRST" ] || ! avgpiped init --config "$config" --authority "$authority" --others "$HOSTS"; then
            avgpiped join $(echo "$HOSTS" | tr , ' ') --config "$config" --authority "$authority" --wait 5m
          fi
          exec avgpiped --config "$config"
        EOF
      }

      template {
        destination = "local/avgpiped.yaml"
        data        = <<-EOF
          state_dir: /var/lib/avgpipe
          socket: /var/lib/avgpipe/avgpiped.sock
          node: {{ env "node.unique.name" }}
          listen: 0.0.0.0:7700
          advertise: {{ env "node.unique.name" }}:7700
          metrics_address: 0.0.0.0:9464
        EOF
      }

      template {
        destination = "secrets/authority.crt"
        data        = "{{ with nomadVar \"nomad/jobs/avgpipe\" }}{{ .crt }}{{ end }}"
        uid         = var.user_id
        perms       = "0400"
      }

      template {
        destination = "secrets/authority.key"
        data        = "{{ with nomadVar \"nomad/jobs/avgpipe\" }}{{ .key }}{{ end }}"
        uid         = var.user_id
        perms       = "0400"
      }

      env {
        PATH  = "/usr/local/bin:/usr/bin:/bin"
        HOST  = "${node.unique.name}"
        FIRST = var.first
        HOSTS = var.hosts
      }

      # What Nomad counts. Cores of jobs are those of the configuration: set its key cores to as many.
      resources {
        cores  = 4
        memory = 16384
      }

      service {
        name         = "avgpipe"
        provider     = "nomad"
        port         = "avgpipe"
        address_mode = "host"

        check {
          type     = "http"
          path     = "/readyz"
          port     = "metrics"
          interval = "10s"
          timeout  = "6s"
        }
      }
    }
  }
}
