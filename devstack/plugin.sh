#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Lays nova-pending over the Nova of DevStack, adds its commands to the
# openstack client and its panels to Horizon, and runs nova-reaper.

NOVA_PENDING_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NOVA_REAPER_TOPIC=reaper_notifications

function install_nova_pending {
    # The layer needs nothing that Nova does not need.
    pip_install --no-deps "$NOVA_PENDING_DIR"
    pip_install "$NOVA_PENDING_DIR/osc"
    "$NOVA_BIN_DIR/nova-pending" status
    if is_service_enabled nova-reaper; then
        pip_install "$NOVA_PENDING_DIR/reaper[mysql]"
    fi
    if is_service_enabled horizon; then
        # Horizon comes from its own repository.
        pip_install --no-deps "$NOVA_PENDING_DIR/dashboard"
        pip_install prometheus-client
        cp "$NOVA_PENDING_DIR"/dashboard/pending_dashboard/enabled/_[0-9]*.py \
            "$HORIZON_DIR/openstack_dashboard/local/enabled/"
    fi
}

function configure_nova_pending {
    local conf
    # DevStack has copied nova.conf for each cell by now.
    for conf in "$NOVA_CONF" "$NOVA_CPU_CONF" \
        "$NOVA_CONF_DIR"/nova_cell*.conf; do
        if [[ ! -e $conf ]]; then
            continue
        fi
        iniset "$conf" DEFAULT use_pending_state True
        iniset "$conf" notifications notification_format versioned
        iniset "$conf" notifications notify_on_state_change vm_state
        iniset "$conf" notifications versioned_notifications_topics \
            $NOVA_REAPER_TOPIC
        iniset "$conf" oslo_messaging_notifications driver messagingv2
    done
}

function configure_nova_reaper {
    local example=$NOVA_PENDING_DIR/reaper/etc/nova-reaper/nova-reaper.conf
    sudo install -d -o "$STACK_USER" -m 750 "$NOVA_REAPER_CONF_DIR"
    sudo install -d -o "$STACK_USER" "$NOVA_REAPER_STATE_DIR"
    install -m 640 "$example" "$NOVA_REAPER_CONF"
    iniset "$NOVA_REAPER_CONF" reaper mode "$NOVA_REAPER_MODE"
    iniset "$NOVA_REAPER_CONF" database connection \
        "sqlite:///$NOVA_REAPER_STATE_DIR/journal.sqlite"
    iniset "$NOVA_REAPER_CONF" http listen "$SERVICE_HOST"
    iniset "$NOVA_REAPER_CONF" http port "$NOVA_REAPER_PORT"
    iniset "$NOVA_REAPER_CONF" notifications transport_url \
        "$(get_notification_url)"
    configure_keystoneauth "$NOVA_REAPER_CONF" nova-reaper nova_reaper
    configure_keystone_authtoken_middleware "$NOVA_REAPER_CONF" nova-reaper
    # The example names the domains by their ids as well.
    local section
    for section in nova_reaper keystone_authtoken; do
        inidelete "$NOVA_REAPER_CONF" $section user_domain_id
        inidelete "$NOVA_REAPER_CONF" $section project_domain_id
    done
}

function create_nova_reaper_accounts {
    OS_CLOUD=devstack-admin NOVA_REAPER_PASSWORD=$SERVICE_PASSWORD \
        bash "$NOVA_PENDING_DIR/reaper/etc/bootstrap/bootstrap" \
        --url "http://$SERVICE_HOST:$NOVA_REAPER_PORT" \
        --region "$REGION_NAME" --domain default
}

function start_nova_reaper {
    run_process nova-reaper \
        "$NOVA_BIN_DIR/nova-reaper run --config-file $NOVA_REAPER_CONF"
}

if [[ "$1" == "stack" && "$2" == "install" ]]; then
    echo_summary "Installing nova-pending"
    install_nova_pending
elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
    echo_summary "Configuring nova-pending"
    configure_nova_pending
    if is_service_enabled nova-reaper; then
        configure_nova_reaper
    fi
elif [[ "$1" == "stack" && "$2" == "extra" ]]; then
    # Nova is asked for its quotas, so it has to run.
    if is_service_enabled nova-reaper; then
        echo_summary "Starting nova-reaper"
        create_nova_reaper_accounts
        start_nova_reaper
    fi
elif [[ "$1" == "unstack" ]]; then
    stop_process nova-reaper
elif [[ "$1" == "clean" ]]; then
    sudo rm -rf "$NOVA_REAPER_CONF_DIR" "$NOVA_REAPER_STATE_DIR"
    rm -f "$HORIZON_DIR"/openstack_dashboard/local/enabled/_*_waiting_servers_*
fi
