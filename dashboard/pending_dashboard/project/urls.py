# SPDX-License-Identifier: Apache-2.0

from django.urls import re_path

from pending_dashboard.project import views
from pending_dashboard import views as pending_views

urlpatterns = [
    re_path(r'^$', views.IndexView.as_view(), name='index'),
    re_path(r'^probe$', pending_views.ProbeView.as_view(), name='probe'),
    re_path(r'^(?P<server_id>[^/]+)/rebuild$',
            pending_views.RebuildView.as_view(), name='rebuild'),
    re_path(r'^(?P<server_id>[^/]+)/rehearse$',
            pending_views.RehearseView.as_view(), name='rehearse'),
]
